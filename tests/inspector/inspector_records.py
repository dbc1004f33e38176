"""Recordings of the tour's pool, as the gateway makes them of a manager's Watch stream."""

from collections.abc import Callable, Iterable, Iterator

from cli.tour.pool import POOL, TourPool
from gateway.inspector import frames
from octavo.kv.v1 import inspect_pb2, watch_pb2
from service.watched import PAGE_KINDS

Play = Callable[[TourPool], object]


def look(pool: TourPool) -> inspect_pb2.InspectPoolResponse:
    return pool.manager.inspect_pool(inspect_pb2.InspectPoolRequest(pool=POOL))


class Recorder:
    """Watches a pool as a feed does, and keeps the frames."""

    def __init__(self, pool: TourPool, batch_ms: int = 33) -> None:
        self.pool = pool
        self.frames = [frames.header("in-process", "test"), frames.looked(look(pool))]
        request = watch_pb2.WatchRequest(pool=POOL, kinds=PAGE_KINDS, batch_ms=batch_ms)
        self._watch = pool.manager.watch(request, lambda: None)
        self.hear()

    def hear(self) -> list[watch_pb2.WatchResponse]:
        """What has happened since."""
        heard = [response for response in self._watch.poll() if response is not None]
        self.frames += [frames.watched(response) for response in heard]
        return heard

    def look(self) -> None:
        self.frames.append(frames.looked(look(self.pool)))

    def play(self, scenes: Iterable[Play]) -> Iterator[None]:
        """Scene by scene, each heard and looked at."""
        for play in scenes:
            play(self.pool)
            self.hear()
            self.look()
            yield

    @property
    def record(self) -> bytes:
        return b"".join(self.frames)
