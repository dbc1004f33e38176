"""Which worker gets a request. Real worker objects that nobody connects; what a look would find is set by hand."""

import time
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from gateway.circuit import FAILURES
from gateway.models import ModelCache, ServedModel
from gateway.policies import PrefixAware, RoundRobin
from gateway.prefix_lookup import PrefixLookup
from gateway.routing import Router
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from gateway.workers import Trouble, Worker
from octavo.kv.v1 import common_pb2
from octavo.worker.v1 import worker_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit

MakeWorker = Callable[[str, ServedModel | None, str], Worker]
NewModel = Callable[[str, str], ServedModel]


@pytest.fixture
async def make_worker() -> AsyncIterator[MakeWorker]:
    """``make_worker(address, model, trouble)``; an empty trouble is a usable worker."""
    workers: list[Worker] = []

    def make(address: str, model: ServedModel | None, trouble: str) -> Worker:
        worker = Worker(address, ModelCache())
        worker.model = model
        worker.trouble = Trouble(trouble) if trouble else None
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        await worker.close()


@pytest.fixture
def new_model(toy_tokenizer: Tokenizer, toy_template: ChatTemplate) -> NewModel:
    return lambda name, fingerprint: ServedModel(name, fingerprint, 258, 100, toy_tokenizer, toy_template)


async def test_the_least_loaded_usable_worker_of_the_model_is_picked(
    make_worker: MakeWorker, new_model: NewModel
) -> None:
    wanted, other = new_model("a", "1"), new_model("b", "1")
    busy, broken, idle, foreign = (
        make_worker("busy:1", wanted, ""),
        make_worker("broken:1", wanted, "it does not answer"),
        make_worker("idle:1", wanted, ""),
        make_worker("foreign:1", other, ""),
    )
    busy.workload.book("1", (), 20)
    idle.workload.book("2", (), 10)
    router = Router([busy, broken, idle, foreign])
    assert await router.pick(wanted) is idle
    assert [(model.name, ready) for model, ready in router.models()] == [("a", 2), ("b", 1)]
    assert router.model("b") is other


async def test_names_that_no_worker_serves(make_worker: MakeWorker, new_model: NewModel) -> None:
    router = Router([make_worker("x:1", new_model("a", "1"), ""), make_worker("y:1", new_model("b", "1"), "down")])
    with pytest.raises(ServiceError, match="served: a, b") as unknown:
        router.model("c")
    assert unknown.value.code is grpc.StatusCode.NOT_FOUND
    with pytest.raises(ServiceError, match="several are served: a, b") as unnamed:
        router.model("")
    assert unnamed.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert Router([make_worker("z:1", new_model("a", "1"), "")]).model("").name == "a"


async def test_a_model_whose_workers_are_gone_is_unavailable_not_unknown(
    make_worker: MakeWorker, new_model: NewModel
) -> None:
    model = new_model("a", "1")
    router = Router([make_worker("x:1", model, "connection refused"), make_worker("y:1", None, "not yet")])
    assert not router.ready
    with pytest.raises(ServiceError, match="x:1: connection refused") as caught:
        await router.pick(router.model("a"))
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER_READY")
    assert caught.value.retry_seconds == 1.0


async def test_during_an_upgrade_a_name_stands_for_the_model_with_most_workers(
    make_worker: MakeWorker, new_model: NewModel
) -> None:
    old, new = new_model("a", "old"), new_model("a", "new")
    workers = [make_worker("x:1", old, ""), make_worker("y:1", new, ""), make_worker("z:1", new, "")]
    router = Router(workers)
    assert router.model("a") is new
    assert await router.pick(new) is workers[1]


async def test_a_model_is_built_once_for_all_its_workers(toy_tokenizer: Tokenizer, toy_files: dict[str, bytes]) -> None:
    fetches: list[str] = []

    async def fetch() -> dict[str, bytes]:
        fetches.append("fetched")
        return toy_files

    cache = ModelCache()
    description = worker_pb2.GetModelResponse(model="a", model_fingerprint="1", vocab_size=258, max_context=100)
    first = await cache.get(description, fetch)
    assert await cache.get(description, fetch) is first
    description.model_fingerprint = "2"
    assert await cache.get(description, fetch) is not first
    assert len(fetches) == 2
    assert (await ModelCache(toy_tokenizer).get(description, fetch)).tokenizer is toy_tokenizer
    assert len(fetches) == 2


async def test_a_burst_of_one_prefix_goes_to_one_worker_until_that_costs_more_than_computing_it_twice(
    make_worker: MakeWorker, new_model: NewModel
) -> None:
    """A prefix of 640 tokens and 10 of each request's own, no token of it computed yet.

    The first one costs 2 * 650 on either worker. The others find 640 tokens on the way at x: 2 * 10 + 650 there for the
    second, 10 more for each that follows, against 2 * 650 = 1,300 at y. So x takes them up to a load of 1,280, which is
    the tie that the lesser load decides for y: 650 + 63 * 10 = 1,280 are 64 requests, and the 65th goes to y.
    """
    model = new_model("a", "1")
    first, second = make_worker("x:1", model, ""), make_worker("y:1", model, "")
    router = Router([first, second], PrefixAware(PrefixLookup(()), 2.0))
    prefix = [7] * 640
    taken = [await router.pick(model, [*prefix, *[number % 250] * 10], request_id=f"{number}") for number in range(66)]
    assert taken[:64] == [first] * 64
    assert taken[64] is second
    # Of another root the same tokens are another prompt: it goes where less is to be done.
    other = await router.pick(model, prefix, request_id="other", root=common_pb2.PrefixRoot(tenant="t"))
    assert other is second


async def test_a_worker_that_failed_a_request_is_not_asked_again(make_worker: MakeWorker, new_model: NewModel) -> None:
    model = new_model("a", "1")
    first, second = make_worker("x:1", model, ""), make_worker("y:1", model, "")
    router = Router([first, second])
    assert await router.pick(model, excluded=[first]) is second
    with pytest.raises(ServiceError, match="the request failed on all"):
        await router.pick(model, excluded=[first, second])
    second.trouble = Trouble("down")
    with pytest.raises(ServiceError, match="y:1: down"):
        await router.pick(model, excluded=[first])


async def test_a_worker_whose_calls_fail_is_left_out_while_there_is_another(
    make_worker: MakeWorker, new_model: NewModel
) -> None:
    model = new_model("a", "1")
    broken, sound = make_worker("x:1", model, ""), make_worker("y:1", model, "")
    router = Router([broken, sound])
    for _ in range(FAILURES):
        assert await router.pick(model) is broken
        broken.circuit.begin(time.monotonic())
        broken.circuit.failed(time.monotonic())
    sound.workload.book("1", (), 10_000)
    assert await router.pick(model) is sound
    sound.trouble = Trouble("down")
    assert await router.pick(model) is broken


async def test_round_robin_takes_turns_whatever_the_load(make_worker: MakeWorker, new_model: NewModel) -> None:
    model = new_model("a", "1")
    workers = [make_worker(f"{name}:1", model, "") for name in "xyz"]
    router = Router(workers, RoundRobin())
    workers[0].workload.book("1", (), 10_000)
    assert [await router.pick(model) for _ in range(4)] == [*workers, workers[0]]


async def test_a_worker_with_two_addresses_is_one_worker(make_worker: MakeWorker, new_model: NewModel) -> None:
    """As a name with an IPv4 and an IPv6 address for each host gives them."""
    model = new_model("a", "1")
    four, six, other = (make_worker(address, model, "") for address in ("10.0.0.7:1", "[fd00::7]:1", "10.0.0.8:1"))
    four.worker_id = six.worker_id = "one process"
    other.worker_id = "another"
    router = Router([four, six, other])
    assert list(router.workers) == [four, other]
    assert router.models() == [(model, 2)]
    assert await router.pick(model, excluded=[six]) is other
    four.trouble = Trouble("no route to host")
    assert list(router.workers) == [six, other]
    assert router.models() == [(model, 2)]
