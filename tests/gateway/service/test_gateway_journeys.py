"""Where a request goes when its worker is gone. Workers that nobody connects; what a look would find is set by hand."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import pytest

from gateway.interruptions import Cause
from gateway.journey import Journey
from gateway.metrics import Metrics
from gateway.migration import Abandoned, MigrationPolicy, Migrations
from gateway.models import ModelCache, ServedModel
from gateway.routing import Router
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from gateway.workers import Trouble, Worker
from octavo.worker.v1 import worker_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit

FAILURE = ServiceError(grpc.StatusCode.UNAVAILABLE, "worker a:1 failed", reason="WORKER_LOST")
PATIENCE_SECONDS = 10.0


class Fleet:
    """Two workers of one model, and journeys that begin on the first."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.workers = [Worker(address, ModelCache()) for address in ("a:1", "b:1")]
        for worker in self.workers:
            worker.model, worker.trouble = model, None
        self.router = Router(self.workers)
        self.metrics = Metrics()

    def migrations(self, **policy: float) -> Migrations:
        return Migrations(self.router, MigrationPolicy(**policy), self.metrics.registry)  # type: ignore[arg-type]

    def journey(self, migrations: Migrations, patience: Callable[[], float | None] = lambda: None) -> Journey:
        async def route(excluded: object, tokens: Sequence[int]) -> Worker:
            return await self.router.pick(self.model, tokens, excluded=excluded)  # type: ignore[arg-type]

        return Journey("id", migrations, route, patience, self.workers[0])

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"octavo_gateway_{name}_total", labels) or 0.0


@pytest.fixture
async def fleet(toy_tokenizer: Tokenizer, toy_template: ChatTemplate) -> AsyncIterator[Fleet]:
    made = Fleet(ServedModel("m", "1", 258, 100, toy_tokenizer, toy_template))
    yield made
    for worker in made.workers:
        await worker.close()


async def test_a_pause_ends_with_the_next_workers_first_message(fleet: Fleet) -> None:
    with fleet.journey(fleet.migrations()) as journey:
        assert journey.answered() is None
        await journey.move(Cause.LOST, FAILURE, [])
        assert journey.worker is fleet.workers[1]
        assert fleet.counted("pauses", cause="lost") == 1
        assert fleet.counted("pauses_ended", outcome="resumed") == 0
        seconds = journey.answered()
        assert seconds is not None
        assert journey.answered() is None
    assert (journey.migrations, journey.paused_seconds, journey.losses) == (1, seconds, 1)
    assert fleet.counted("pauses_ended", outcome="resumed") == 1


async def test_who_leaves_at_the_moment_of_the_news_has_left(fleet: Fleet) -> None:
    migrations = fleet.migrations()
    waiting = asyncio.create_task(migrations.news(PATIENCE_SECONDS))
    await asyncio.sleep(0)
    migrations.workers_changed()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_a_refusal_is_no_migration(fleet: Fleet) -> None:
    with fleet.journey(fleet.migrations(max_migrations=0)) as journey:
        await journey.move(Cause.REFUSED, FAILURE, [])
        assert journey.worker is fleet.workers[1]
        assert journey.answered() is None
    assert (journey.migrations, journey.departures) == (0, 0)
    assert fleet.counted("pauses", cause="refused") == 0


@pytest.mark.parametrize(
    ("policy", "cause", "said"),
    [
        ({"max_worker_losses": 0}, Cause.LOST, "has lost 1 workers"),
        ({"max_migrations": 0}, Cause.DRAINED, "at most 0 times"),
    ],
)
async def test_a_request_goes_so_far_and_no_further(
    fleet: Fleet, policy: dict[str, float], cause: Cause, said: str
) -> None:
    with pytest.raises(ServiceError, match=said) as caught, fleet.journey(fleet.migrations(**policy)) as journey:
        await journey.move(cause, FAILURE, [])
    assert (caught.value.code, caught.value.reason) == (FAILURE.code, FAILURE.reason)
    assert fleet.counted("pauses_ended", outcome="failed") == 1


async def test_a_worker_that_comes_ends_the_wait(fleet: Fleet) -> None:
    migrations = fleet.migrations(wait_seconds=60)
    other = fleet.workers[1]
    other.trouble = Trouble("loading the model")
    with fleet.journey(migrations) as journey:
        waiting = asyncio.create_task(journey.move(Cause.LOST, FAILURE, []))
        await asyncio.sleep(0)
        other.trouble = None
        migrations.workers_changed()
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert journey.worker is other


async def test_the_lost_worker_counts_again_when_it_was_seen_to_come_back(fleet: Fleet) -> None:
    migrations = fleet.migrations(wait_seconds=60)
    lost, other = fleet.workers
    other.trouble = Trouble("gone for good")
    with fleet.journey(migrations) as journey:
        waiting = asyncio.create_task(journey.move(Cause.LOST, FAILURE, []))
        # Its health has not been looked at since: a worker without trouble, which is left out all the same.
        await asyncio.sleep(0)
        assert not waiting.done()
        for trouble in (Trouble("connection refused"), None):
            lost.trouble = trouble
            migrations.workers_changed()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert journey.worker is lost


async def test_nobody_comes(fleet: Fleet) -> None:
    fleet.workers[1].trouble = Trouble("gone for good")
    with (
        pytest.raises(ServiceError, match="no other worker of its model came within 0 s"),
        fleet.journey(fleet.migrations(wait_seconds=0)) as journey,
    ):
        await journey.move(Cause.LOST, FAILURE, [])


async def test_a_new_request_that_is_refused_does_not_wait(fleet: Fleet) -> None:
    fleet.workers[1].trouble = Trouble("gone for good")
    with (
        pytest.raises(ServiceError, match="no other worker of its model is ready"),
        fleet.journey(fleet.migrations(wait_seconds=60)) as journey,
    ):
        await asyncio.wait_for(journey.move(Cause.REFUSED, FAILURE, []), PATIENCE_SECONDS)


async def test_a_deadline_is_no_failure_of_the_worker(fleet: Fleet) -> None:
    fleet.workers[1].trouble = Trouble("gone for good")
    with (
        pytest.raises(ServiceError, match="the deadline passed") as caught,
        fleet.journey(fleet.migrations(wait_seconds=60), lambda: 0.0) as journey,
    ):
        await journey.move(Cause.LOST, FAILURE, [])
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


class EndlessCall:
    """A call that brings nothing until it is cancelled, and then what gRPC raises."""

    def __init__(self) -> None:
        self._cancelled = asyncio.Event()

    def __aiter__(self) -> "EndlessCall":
        return self

    async def __anext__(self) -> worker_pb2.GenerateResponse:
        await self._cancelled.wait()
        raise asyncio.CancelledError

    def cancel(self) -> None:
        self._cancelled.set()


@pytest.fixture
async def frozen(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """The first worker, whose calls bring nothing."""

    @contextlib.asynccontextmanager
    async def generate(request: object, timeout: object) -> AsyncIterator[EndlessCall]:
        yield EndlessCall()

    monkeypatch.setattr(fleet.workers[0], "generate", generate)
    return fleet.workers[0]


async def listen(migrations: Migrations, worker: Worker) -> None:
    async with migrations.call(worker, worker_pb2.GenerateRequest(), None) as call:
        async for _ in call:
            pass


async def test_streams_leave_a_frozen_worker_only_for_another(fleet: Fleet, frozen: Worker) -> None:
    migrations = fleet.migrations()
    other = fleet.workers[1]
    streams = [asyncio.create_task(listen(migrations, frozen)) for _ in range(3)]
    await asyncio.sleep(0)
    other.trouble = Trouble("loading the model")
    frozen.trouble = Trouble("it does not answer", silent=True)
    migrations.workers_changed()
    done, _ = await asyncio.wait(streams, timeout=0)
    assert not done
    other.trouble = None
    migrations.workers_changed()
    ends = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), PATIENCE_SECONDS)
    assert [type(end) for end in ends] == [Abandoned] * 3


async def test_a_task_that_is_cancelled_is_not_abandoned(fleet: Fleet, frozen: Worker) -> None:
    migrations = fleet.migrations()
    stream = asyncio.create_task(listen(migrations, frozen))
    await asyncio.sleep(0)
    # The client leaves in the same moment.
    frozen.trouble = Trouble("it does not answer", silent=True)
    migrations.workers_changed()
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
