"""Which worker gets a request. Real worker objects that nobody connects; what a look would find is set by hand."""

from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from gateway.models import ModelCache, ServedModel
from gateway.routing import Router
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from gateway.workers import Trouble, Worker
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
