"""Greedy float32 text of the worker equals transformers' own, however it is batched, chunked, paged or cached.

Real kv_manager and model_worker processes over gRPC; each case checks from the worker's own statistics that it ran as
named. Text through the gateway is in test_stack.py.
"""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from processes import ServiceProcess, running_stack
from reference import TOKENS, greedy, prompts

from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

# Every block size and both chunk lengths in CI; the other pairs in `make soak`.
CI_CASES = {(1, 512), (7, 8), (16, 512), (256, 8)}
CASES = [
    pytest.param(
        (size, chunk), marks=[] if (size, chunk) in CI_CASES else pytest.mark.soak, id=f"block{size}-chunk{chunk}"
    )
    for size in (1, 7, 16, 256)
    for chunk in (8, 512)
]
NAMES = ("short", "long", "chat", "emoji and CJK", "code", "digits", "1 token", "1,000 tokens")


class Client:
    """Greedy generations of a worker, end-of-sequence ignored."""

    def __init__(self, worker: ServiceProcess, texts: dict[str, list[int]], ids: dict[str, list[int]]) -> None:
        self.worker = worker
        self.stub = worker_pb2_grpc.WorkerServiceStub(grpc.insecure_channel(worker.address))
        self.texts = texts
        self.ids = ids

    def start(self, name: str, salt: str) -> Iterator[worker_pb2.GenerateResponse]:
        request = worker_pb2.GenerateRequest(
            token_ids=self.ids[name],
            sampling=sampling_pb2.SamplingParams(temperature=0),
            stop=sampling_pb2.StopConditions(max_tokens=TOKENS, ignore_eos=True),
            salt=salt,
        )
        return self.stub.Generate(request, timeout=300)

    def finish(
        self, name: str, stream: Iterator[worker_pb2.GenerateResponse], first: threading.Event | None = None
    ) -> worker_pb2.RequestStats:
        """Read a stream to its end and compare its tokens with the reference."""
        tokens: list[int] = []
        last = None
        for last in stream:
            tokens += last.token_ids
            if first is not None:
                first.set()
        assert last is not None
        assert tokens == self.texts[name], name
        return last.finished.stats


@pytest.fixture(scope="module")
def ids(demo_model: Path) -> dict[str, list[int]]:
    return prompts(demo_model)


@pytest.fixture(scope="module")
def texts(demo_model: Path) -> dict[str, list[int]]:
    return greedy(demo_model, demo_model.parent)


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, demo_model: Path, ids: dict[str, list[int]], texts: dict[str, list[int]]
) -> Iterator[tuple[int, int, Client]]:
    size, chunk = request.param
    # Room for 16 sequences of the longest kind: 16 x 1,064 tokens and a started block each.
    flags = {
        "block-size": size,
        "prefill-chunk": chunk,
        "num-blocks": 16 * (1064 // size + 2),
        "max-sequences": 16,
        "max-batch-tokens": 512,
    }
    with running_stack(demo_model, worker_flags=flags, gateway=False) as stack:
        client = Client(stack.worker, texts, ids)
        model = client.stub.GetModel(worker_pb2.GetModelRequest())
        assert (model.block_size, model.dtype, model.device) == (size, "float32", "cpu")
        yield size, chunk, client


def arrive_one_by_one(client: Client, salts: list[str]) -> list[tuple[str, worker_pb2.RequestStats]]:
    """Sixteen requests of mixed lengths: eight at once, then each when the one eight before it has its first token."""
    names = [name for _ in salts for name in NAMES]
    firsts = [threading.Event() for _ in names]
    with ThreadPoolExecutor(len(names)) as pool:
        running = []
        client.worker.signal(signal.SIGSTOP)  # it finds all eight when it goes on
        for index, name in enumerate(names):
            assert index < 8 or firsts[index - 8].wait(240)
            stream = client.start(name, salts[index // len(NAMES)])
            running.append(pool.submit(client.finish, name, stream, firsts[index]))
            if index == 7:
                client.worker.signal(signal.SIGCONT)
        return list(zip(names, [one.result() for one in running], strict=True))


def test_sixteen_at_once_cold_and_cached(case: tuple[int, int, Client]) -> None:
    size, chunk, client = case
    cold = arrive_one_by_one(client, ["a", "b"])
    assert all(stats.cached_tokens == 0 for _, stats in cold)
    for name, stats in cold:
        # Chunks end at block edges where they can, so none is longer than `chunk` and few are much shorter.
        assert stats.prefill_chunks >= -(-len(client.ids[name]) // chunk), name
    assert dict(cold)["1,000 tokens"].prefill_chunks > 1
    assert max(stats.max_batch for _, stats in cold) >= 8
    assert any(stats.mixed_steps > 0 for _, stats in cold)

    cached = arrive_one_by_one(client, ["a", "b"])
    for name, stats in cached:
        length = len(client.ids[name])
        full = length // size * size
        assert stats.cached_tokens == (full if full < length else length - 1), name
    assert dict(cached)["1,000 tokens"].cached_tokens > 0


def test_alone_cold_and_cached(case: tuple[int, int, Client]) -> None:
    size, _, client = case
    for name in NAMES if size == 16 else ("emoji and CJK", "1,000 tokens"):
        alone_cold_and_cached(client, size, name)


def alone_cold_and_cached(client: Client, size: int, name: str) -> None:
    cold = client.finish(name, client.start(name, "alone"))
    assert (cold.max_batch, cold.cached_tokens, cold.steps) == (1, 0, cold.prefill_chunks + TOKENS - 1)
    cached = client.finish(name, client.start(name, "alone"))
    length = len(client.ids[name])
    full = length // size * size
    assert cached.cached_tokens == (full if full < length else length - 1)
    assert cached.max_batch == 1
