"""``VllmEngine`` of a real worker process, called as a gateway calls it."""

import asyncio
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from processes import Stack, running_stack
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from tiny_checkpoints import tiny_checkpoint

from model_worker.servicer import Worker
from model_worker.streams import StreamTable
from model_worker.vllm_face.prefix_cache import PrefixCache
from model_worker.vllm_face.servicer import VllmEngineServicer
from octavo.kv.v1 import kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import open_channel
from service.errors import ServiceError, error_info_of

pytestmark = pytest.mark.e2e

BLOCK = 16
CONTEXT = 32_768  # what is to be interrupted is still there, on any machine and for a tiny model
ENDLESS = CONTEXT - 100
BLOCKS = CONTEXT // BLOCK + 10
FLAGS = {"num-blocks": BLOCKS, "block-size": BLOCK, "host-memory-mib": 0, "threads": 1, "served-name": "tiny"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("llama", tmp_path_factory.mktemp("vllm_face"), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def stack(checkpoint: Path) -> Iterator[Stack]:
    flags = {"watch-token-ids": "true"}
    with running_stack(checkpoint, gateway=False, worker_flags=FLAGS, manager_flags=flags) as running:
        yield running


@pytest.fixture(scope="module")
def engine(stack: Stack) -> Any:
    return vllm_engine_pb2_grpc.VllmEngineStub(open_channel(stack.worker.address))


@pytest.fixture(scope="module")
def own(stack: Stack) -> worker_pb2_grpc.WorkerServiceStub:
    return worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))


def request(prompt: list[int], stream: bool = False, request_id: str = "", **params: Any) -> Any:
    return vllm_pb2.GenerateRequest(
        request_id=request_id,
        tokenized=vllm_pb2.TokenizedInput(input_ids=prompt),
        stream=stream,
        sampling_params=vllm_pb2.SamplingParams(**{"ignore_eos": True, **params}),
    )


def flush(engine: Any) -> None:
    assert engine.FlushCache(common_pb2.FlushCacheRequest(timeout_s=60), timeout=90).success


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_are_those_of_the_own_service(
    stream: bool, engine: Any, own: worker_pb2_grpc.WorkerServiceStub
) -> None:
    wanted = worker_pb2.GenerateRequest(
        token_ids=[3, 4, 5], sampling={"seed": 9}, stop={"max_tokens": 12, "ignore_eos": True}, n=2
    )
    expected: dict[int, list[int]] = {0: [], 1: []}
    for response in own.Generate(wanted, timeout=60):
        expected[response.index] += response.token_ids
    tokens: dict[int, list[int]] = {0: [], 1: []}
    ends = {}
    for response in engine.Generate(request([3, 4, 5], stream, seed=9, n=2, max_tokens=12), timeout=60):
        if response.HasField("chunk"):
            tokens[response.chunk.index] += response.chunk.token_ids
        else:
            tokens[response.complete.index] += response.complete.output_ids
            ends[response.complete.index] = response.complete
    assert tokens == expected
    assert tokens[0] != tokens[1]
    assert {(end.finish_reason, end.completion_tokens) for end in ends.values()} == {("length", 12)}


def test_abort_ends_a_stream(engine: Any) -> None:
    call = engine.Generate(request([7, 8, 9], stream=True, request_id="long", max_tokens=ENDLESS), timeout=60)
    assert next(call).HasField("chunk")
    engine.Abort(vllm_pb2.AbortRequest(request_ids=["nobody", "long"]), timeout=60)
    last = list(call)[-1]
    assert last.complete.finish_reason == "abort"
    assert last.complete.completion_tokens < ENDLESS


def test_a_refusal_names_the_field_and_leaves_nothing(engine: Any) -> None:
    for bad in (request([]), request([1], top_p=2.0, max_tokens=1), request([1], stop=["x"])):
        with pytest.raises(grpc.RpcError) as refused:
            list(engine.Generate(bad, timeout=60))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (load,) = engine.GetLoads(vllm_pb2.GetLoadsRequest(), timeout=60).loads
    assert load.num_waiting_uncached_tokens == 0


def test_it_says_what_it_is(engine: Any, checkpoint: Path) -> None:
    assert engine.HealthCheck(vllm_pb2.HealthCheckRequest(), timeout=60).healthy
    model = engine.GetModelInfo(vllm_pb2.GetModelInfoRequest(), timeout=60)
    assert (model.served_model_name, model.model_path) == ("tiny", str(checkpoint.resolve()))
    assert (model.model_type, list(model.architectures)) == ("llama", ["LlamaForCausalLM"])
    assert (model.vocab_size, model.max_context_length, model.max_req_input_len) == (199, CONTEXT, CONTEXT - 1)
    assert (list(model.eos_token_ids), model.bos_token_id, model.pad_token_id) == ([2], 1, 0)
    server = engine.GetServerInfo(vllm_pb2.GetServerInfoRequest(), timeout=60)
    assert (server.server_type, server.data_parallel_size) == ("vllm-grpc", 1)
    assert (server.block_size, server.max_num_seqs, server.model_dtype) == (BLOCK, 32, "torch.float32")
    assert server.uptime_seconds > 0


def test_it_says_how_busy_it_is(engine: Any) -> None:
    flush(engine)
    call = engine.Generate(request(list(range(3, 43)), stream=True, max_tokens=ENDLESS), timeout=60)
    next(call)
    loads = engine.GetLoads(vllm_pb2.GetLoadsRequest(), timeout=60)
    (load,) = loads.loads
    call.cancel()
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (1, 0, 1)
    assert load.max_total_num_tokens == BLOCKS * BLOCK
    # 40 tokens of prompt are three blocks; the answer may have taken more by now.
    assert 3 * BLOCK <= load.num_used_tokens <= CONTEXT
    assert load.token_usage == pytest.approx(load.num_used_tokens / (BLOCKS * BLOCK))


def test_the_tokenizer_comes_as_an_archive(engine: Any, checkpoint: Path) -> None:
    pieces = list(engine.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=60))
    with zipfile.ZipFile(io.BytesIO(b"".join(piece.data for piece in pieces))) as files:
        assert files.read("config.json") == (checkpoint / "config.json").read_bytes()


def test_what_it_lacks_is_unimplemented(engine: Any) -> None:
    for call, message in (
        (engine.Embed, vllm_pb2.EmbedRequest()),
        (engine.StartProfile, common_pb2.StartProfileRequest()),
        (engine.StopProfile, common_pb2.StopProfileRequest()),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(message, timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_events_tell_what_a_prompt_may_find(engine: Any) -> None:
    flush(engine)
    call = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=60)
    start = next(call)
    assert start.events[0].HasField("cleared")
    assert start.snapshot.unknown_before == 0  # the cache was empty
    # 40 tokens are two full blocks of 16 and one that is not told.
    prompt = list(range(50, 90))
    list(engine.Generate(request(prompt, max_tokens=1), timeout=60))
    ids: list[int] = []
    for batch in call:
        for event in batch.events:
            ids += [token for block in event.stored.blocks for token in block.token_ids]
        if len(ids) >= 32:
            break
    assert ids == prompt[:32]
    # Who comes later hears of them too.
    late = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=60)
    blocks = [block for event in next(late).events for block in event.stored.blocks]
    late.cancel()
    assert [token for block in blocks for token in block.token_ids] == prompt[:32]
    flush(engine)
    assert any(event.HasField("cleared") for batch in call_until_cleared(call) for event in batch.events)
    call.cancel()


def call_until_cleared(call: Iterator[Any]) -> Iterator[Any]:
    for batch in call:
        yield batch
        if any(event.HasField("cleared") for event in batch.events):
            return


def test_the_cache_in_use_is_not_flushed(engine: Any) -> None:
    call = engine.Generate(request([5, 6, 7], stream=True, max_tokens=ENDLESS), timeout=60)
    next(call)
    answer = engine.FlushCache(common_pb2.FlushCacheRequest(), timeout=60)
    call.cancel()
    assert not answer.success
    assert "in use" in answer.message
    flush(engine)


@pytest.mark.parametrize("params", [{}, {"stop": ["x"]}])
async def test_a_worker_that_loads_asks_for_patience(params: dict[str, Any], checkpoint: Path) -> None:
    worker = Worker("w", 1, StreamTable(asyncio.get_running_loop()), state="loading the model")
    loading = VllmEngineServicer(worker, checkpoint, cache := PrefixCache("127.0.0.1:1"))
    health = await loading.HealthCheck(vllm_pb2.HealthCheckRequest(), None)
    assert (health.healthy, health.message) == (False, "loading the model")
    calls = [loading.Generate(request([1], **params), None), loading.GetTokenizer(None, None)]
    for call in [*(anext(call) for call in calls), loading.GetModelInfo(None, None), loading.GetLoads(None, None)]:
        with pytest.raises(ServiceError, match="loading the model") as refused:
            await call
        assert (refused.value.code, refused.value.retry_seconds) == (grpc.StatusCode.UNAVAILABLE, 1.0)
    with pytest.raises(ServiceError, match="whole vocabulary"):
        await anext(loading.Generate(request([1], logprobs=-1), None))
    assert worker.counts.read().refused == {"NOT_READY": 1, "INVALID_REQUEST": 1}
    await cache.close()


class SilentManager(kv_manager_pb2_grpc.KvManagerServiceServicer):
    """Never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ResetPrefixCache(self, request: Any, context: Any) -> Any:
        self.asked.set()
        await asyncio.Event().wait()


async def test_who_flushes_while_the_worker_goes_hears_it() -> None:
    """In the middle of a call, and behind it: neither a call that nobody cancelled nor an error without a reason."""
    manager, server = SilentManager(), grpc.aio.server()
    kv_manager_pb2_grpc.add_KvManagerServiceServicer_to_server(manager, server)
    cache = PrefixCache(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    waiting = asyncio.create_task(cache.flush("pool", 0.0))
    await manager.asked.wait()
    await cache.close()
    late = cache.flush("pool", 0.0), anext(cache.events(worker_pb2.GetModelResponse(pool="pool", block_size=4)))
    for call in (waiting, *late):
        with pytest.raises(ServiceError, match="the worker is going away") as refused:
            await call
        assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.UNAVAILABLE, "MANAGER_UNAVAILABLE")
    await server.stop(0)


def test_who_follows_events_does_not_hold_up_the_end(checkpoint: Path) -> None:
    # Without --watch-token-ids nothing can be told either, which the first stored block shows.
    with running_stack(checkpoint, gateway=False, worker_flags={**FLAGS, "grace-seconds": 600}) as running:
        engine = vllm_engine_pb2_grpc.VllmEngineStub(open_channel(running.worker.address))
        blind = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=60)
        next(blind)
        list(engine.Generate(request(list(range(3, 43)), max_tokens=1), timeout=60))
        with pytest.raises(grpc.RpcError, match="--watch-token-ids") as refused:
            list(blind)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        followed = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=60)
        next(followed)
        assert running.worker.stop() == 0  # a tenth of the grace
        with pytest.raises(grpc.RpcError) as ended:
            list(followed)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        info = error_info_of(ended.value)
        assert info is not None
        assert info.reason == "MANAGER_UNAVAILABLE"
