"""Following a pool's Watch stream in a thread of its own, and coming back after a break where it left off."""

import threading
from collections.abc import Callable

import grpc

from cli.calls import explain
from cli.live.mirror import Mirror
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc, watch_pb2
from service.watched import PAGE_KINDS, Gap

SECONDS_BETWEEN_TRIES = 1.0
# For the answer about a pool; whoever leaves waits for it too, of a manager that answers no more as well.
PATIENCE_SECONDS = 10.0


class Follower:
    """Keeps a mirror as the stream tells it, from ``with`` to its end.

    Attributes:
        lock: guards the mirror, and is notified when it has changed.
    """

    def __init__(self, stub: "kv_manager_pb2_grpc.KvManagerServiceStub", pool: str, address: str) -> None:
        self.mirror = Mirror()
        self.lock = threading.Condition()
        self._stub = stub
        self._pool = pool
        self._address = address
        self._ended = threading.Event()
        self._cancel: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self._ended.set()
            self._cancel()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._follow()
            except Gap:
                continue
            except grpc.RpcError as error:
                with self.lock:
                    self.mirror.trouble = str(explain(error, self._address, "KV manager"))
                    self.lock.notify_all()
            self._ended.wait(SECONDS_BETWEEN_TRIES)

    def _follow(self) -> None:
        """One stream, from the place where the last one broke."""
        with self.lock:
            if self._ended.is_set():
                return
            request = watch_pb2.WatchRequest(pool=self._pool, kinds=PAGE_KINDS, after=self.mirror.position)
            call = self._stub.Watch(request)
            self._cancel = call.cancel
        try:
            for response in call:
                if self.mirror.begins(response):
                    pool = inspect_pb2.InspectPoolRequest(pool=self._pool)
                    answer = self._stub.InspectPool(pool, timeout=PATIENCE_SECONDS)
                    with self.lock:
                        self.mirror.begin(answer)
                with self.lock:
                    self.mirror.hear(response)
                    self.lock.notify_all()
        finally:
            call.cancel()
