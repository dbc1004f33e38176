"""The worker as a process: what it refuses, how it ends requests, and what it survives."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from processes import REPOSITORY, ServiceProcess, Stack, running_stack
from unclaimed_port import unclaimed_port

from gateway.text.tokenizer import TOKENIZER_FILES
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from service.channels import open_channel
from service.errors import error_info_of

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(900)]

PROMPT = [504, 1463, 282, 260, 3847, 7293, 8250, 351]
# What no machine generates before it is ended, and what is read of it at the end of a test.
ENDLESS, SOME = 7_000, 40


@pytest.fixture(scope="module")
def stack(demo_model: Path) -> Iterator[Stack]:
    with running_stack(demo_model, gateway=False, worker_flags={"num-blocks": 50}) as running:
        yield running


@pytest.fixture(scope="module")
def worker(stack: Stack) -> worker_pb2_grpc.WorkerServiceStub:
    return worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))


def generate(ids: list[int] = PROMPT, max_tokens: int = 8, **fields: object) -> worker_pb2.GenerateRequest:
    return worker_pb2.GenerateRequest(
        token_ids=ids,
        sampling=sampling_pb2.SamplingParams(temperature=0),
        stop=sampling_pb2.StopConditions(max_tokens=max_tokens, ignore_eos=True),
        **fields,  # type: ignore[arg-type]
    )


def tokens_of(stream: Iterator[worker_pb2.GenerateResponse]) -> list[int]:
    return [token for response in stream for token in response.token_ids]


def changed(request: worker_pb2.GenerateRequest, path: str, value: object) -> worker_pb2.GenerateRequest:
    target = request
    *parents, name = path.split(".")
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, name, value)
    return request


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("stop.max_tokens", 0),
        ("sampling.temperature", -1.0),
        ("sampling.temperature", float("nan")),
        ("sampling.temperature", float("inf")),
        ("sampling.top_p", 0.0),
        ("sampling.top_p", 2.0),
        ("sampling.top_p", float("nan")),
        ("sampling.min_p", -0.1),
        ("sampling.min_p", 1.5),
        ("n", 1000),
        ("n", 0),
        ("best_of", 1000),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("adapter", "lora"),
        ("tenant", "t" * 129),
        ("sampling.typical_p", 0.0),
    ],
)
def test_a_bad_field_is_named_and_nothing_runs(
    worker: worker_pb2_grpc.WorkerServiceStub, path: str, value: object
) -> None:
    before = worker.GetStats(worker_pb2.GetStatsRequest()).prompt_tokens
    with pytest.raises(grpc.RpcError) as caught:
        list(worker.Generate(changed(generate(), path, value), timeout=30))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert path in caught.value.details()
    assert worker.GetStats(worker_pb2.GetStatsRequest()).prompt_tokens == before


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([], "empty"),
        ([49_152], "outside the vocabulary of 49152"),
        # 50 blocks of 16 hold 800 tokens, one of which must be generated.
        ([7] * 800, "800 tokens and one to generate exceed the context of 800"),
        ([7] * 801, "801 tokens"),
        ([7] * 1_500_000, "1500000 tokens"),
    ],
)
def test_a_bad_prompt_is_refused(worker: worker_pb2_grpc.WorkerServiceStub, ids: list[int], said: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(worker.Generate(generate(ids), timeout=30))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "token_ids" in caught.value.details()
    assert said in caught.value.details()
    # Somebody behind it is served.
    assert len(tokens_of(worker.Generate(generate(max_tokens=1), timeout=60))) == 1


@pytest.mark.parametrize("length", [784, 799])
def test_a_prompt_that_just_fits_is_answered(worker: worker_pb2_grpc.WorkerServiceStub, length: int) -> None:
    *_, last = worker.Generate(generate([7] * length, max_tokens=16), timeout=120)
    assert last.finished.reason == sampling_pb2.FINISH_REASON_LENGTH
    assert last.finished.stats.completion_tokens == min(16, 800 - length)


@pytest.mark.parametrize("length", [16, 32, 33])
def test_a_prompt_found_whole_gives_the_same_text(worker: worker_pb2_grpc.WorkerServiceStub, length: int) -> None:
    ids = [1000 + position for position in range(length)]
    cold = list(worker.Generate(generate(ids), timeout=60))
    warm = list(worker.Generate(generate(ids), timeout=60))
    assert tokens_of(iter(warm)) == tokens_of(iter(cold))
    # 16 and 32 are found whole, all but the last token; of 33 the two full blocks.
    assert warm[0].started.cached_tokens == {16: 15, 32: 31, 33: 32}[length]


def test_a_seed_repeats_and_none_does_not(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    def sampled(seed: int | None, temperature: float = 1.0) -> list[int]:
        request = generate(max_tokens=16)
        request.sampling.temperature = temperature
        if seed is not None:
            request.sampling.seed = seed
        return tokens_of(worker.Generate(request, timeout=60))

    assert sampled(7) == sampled(7)
    assert len({tuple(sampled(seed)) for seed in (1, 2, 3)}) == 3
    assert len({tuple(sampled(None)) for _ in range(3)}) > 1
    assert sampled(1, temperature=1e-8) == sampled(2, temperature=0)
    assert len(sampled(1, temperature=1e4)) == 16


def test_a_resumed_sample_goes_on_as_if_never_interrupted(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    request = generate(max_tokens=16)
    request.sampling.temperature = 1.0
    request.sampling.seed = 11
    whole = tokens_of(worker.Generate(request, timeout=60))
    request.resume.seed = 11
    request.resume.samples.add(index=0, token_ids=whole[:5])
    assert tokens_of(worker.Generate(request, timeout=60)) == whole[5:]


def test_abort_by_rpc_ends_the_stream(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    stream = worker.Generate(generate(max_tokens=700, request_id="long"), timeout=60)
    next(stream)
    assert worker.Abort(worker_pb2.AbortRequest(request_id="long")).found
    *_, last = stream
    assert last.finished.reason == sampling_pb2.FINISH_REASON_ABORTED
    assert not worker.Abort(worker_pb2.AbortRequest(request_id="long")).found


def test_samples_stream_side_by_side(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    alone = tokens_of(worker.Generate(generate()))
    responses = list(worker.Generate(generate(n=3)))
    assert [response.HasField("started") for response in responses] == [True] + [False] * (len(responses) - 1)
    for index in range(3):
        own = [response for response in responses if response.index == index]
        assert tokens_of(iter(own)) == alone
        assert [response.HasField("finished") for response in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].finished.stats.completion_tokens == len(alone)


def test_abort_ends_every_sample(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    stream = worker.Generate(generate(max_tokens=500, request_id="many", n=3))
    next(stream)
    assert worker.Abort(worker_pb2.AbortRequest(request_id="many")).found
    ends = {response.index: response.finished.reason for response in stream if response.HasField("finished")}
    assert ends == dict.fromkeys(range(3), sampling_pb2.FINISH_REASON_ABORTED)


def test_a_request_id_in_use_is_refused(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    stream = worker.Generate(generate(max_tokens=700, request_id="twice"), timeout=60)
    next(stream)
    with pytest.raises(grpc.RpcError) as caught:
        list(worker.Generate(generate(request_id="twice"), timeout=60))
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    stream.cancel()  # type: ignore[attr-defined]


def test_a_cancel_frees_the_blocks(stack: Stack, worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    """How soon, tests/e2e/test_cancel_gate.py tells."""
    kv = kv_manager_pb2_grpc.KvManagerServiceStub(open_channel(stack.manager.address))
    stream = worker.Generate(generate(max_tokens=700), timeout=60)
    next(stream)
    stream.cancel()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30.0
    while kv.InspectPool(inspect_pb2.InspectPoolRequest(pool="default")).summary.stats.referenced_blocks:
        assert time.monotonic() < deadline


def test_the_tokenizer_files_are_those_a_gateway_reads(
    worker: worker_pb2_grpc.WorkerServiceStub, demo_model: Path
) -> None:
    files: dict[str, bytes] = {}
    for piece in worker.GetTokenizer(worker_pb2.GetTokenizerRequest()):
        files[piece.name] = files.get(piece.name, b"") + piece.data
    assert files == {name: (demo_model / name).read_bytes() for name in TOKENIZER_FILES if (demo_model / name).exists()}


def read_on(stream: Any, tokens: list[int], generated: int) -> None:
    """Read past the so many tokens that were generated before, and leave it."""
    while len(tokens) < generated + SOME:
        tokens += next(stream).token_ids
    stream.cancel()


def alone(worker: worker_pb2_grpc.WorkerServiceStub, count: int) -> list[int]:
    """The first tokens of the same request, computed anew and undisturbed."""
    return tokens_of(worker.Generate(generate(max_tokens=count, salt="alone"), timeout=240))


def test_streams_survive_the_death_of_the_manager(demo_model: Path) -> None:
    """The manager is killed under a live stream and another one started: no token is lost or repeated."""
    listen = f"127.0.0.1:{unclaimed_port()}"
    flags = {"worker_flags": {"lease-patience": 0.2}, "manager_flags": {"listen": listen}}
    with running_stack(demo_model, gateway=False, **flags) as stack:
        worker = worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))
        stream = worker.Generate(generate(max_tokens=ENDLESS), timeout=240)
        tokens = list(next(stream).token_ids)
        stack.manager.signal(signal.SIGKILL)
        stack.manager.process.wait()
        with ServiceProcess("kv_manager", f"--listen={listen}", "--metrics=").wait_ready() as second:
            while not (stats := worker.GetStats(worker_pb2.GetStatsRequest())).reattaches:
                tokens += next(stream).token_ids
            read_on(stream, tokens, stats.generated_tokens)
            assert tokens == alone(worker, len(tokens))
            stats = worker.GetStats(worker_pb2.GetStatsRequest())
            # Its table was adopted: nothing was computed twice.
            assert (stats.reattaches, stats.preemptions) == (1, 0)
            kv = kv_manager_pb2_grpc.KvManagerServiceStub(open_channel(second.address))
            verdict = kv.CheckIntegrity(inspect_pb2.CheckIntegrityRequest(pool="default"))
            assert list(verdict.violations) == []


def test_readiness_follows_the_manager(demo_model: Path) -> None:
    with running_stack(demo_model, gateway=False, worker_flags={"lease-patience": 0.2}) as stack:
        health = health_pb2_grpc.HealthStub(open_channel(stack.worker.address))
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=180)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        stack.manager.signal(signal.SIGKILL)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        worker = worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))
        with pytest.raises(grpc.RpcError) as caught:
            list(worker.Generate(generate(), timeout=60))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        info = error_info_of(caught.value)
        assert info is not None
        assert info.reason == "NOT_READY"
        assert "lost the KV manager" in caught.value.details()
        watch.cancel()  # type: ignore[attr-defined]  # else the worker waits for it to its grace's end


def test_a_frozen_manager_is_noticed_and_its_streams_go_on(demo_model: Path) -> None:
    """B73, at the manager: a worker without one is not ready, which its gateways see as they see a frozen worker."""
    with running_stack(demo_model, gateway=False) as stack:
        worker = worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))
        watch = health_pb2_grpc.HealthStub(open_channel(stack.worker.address)).Watch(
            health_pb2.HealthCheckRequest(), timeout=180
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        stream = worker.Generate(generate(max_tokens=ENDLESS), timeout=240)
        tokens = list(next(stream).token_ids)
        stack.manager.signal(signal.SIGSTOP)
        frozen = time.monotonic()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        # Ten seconds on a machine that has nothing else to do.
        assert time.monotonic() - frozen < 90
        stats = worker.GetStats(worker_pb2.GetStatsRequest())
        assert stats.state == "the KV manager does not answer"
        stack.manager.signal(signal.SIGCONT)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        read_on(stream, tokens, stats.generated_tokens)
        assert tokens == alone(worker, len(tokens))
        watch.cancel()  # type: ignore[attr-defined]  # else the worker waits for it to its grace's end


def test_a_second_worker_is_refused_while_the_first_lives(demo_model: Path) -> None:
    with running_stack(demo_model, gateway=False) as stack:
        flags = [f"--model={demo_model}", f"--manager={stack.manager.address}", "--listen=127.0.0.1:0", "--metrics="]
        worker = worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))
        # The first one is ready, so its pool is its own, though it has served nobody yet.
        with ServiceProcess("model_worker", *flags) as second:
            second.wait_log("POOL_IN_USE", 120)
            assert len(tokens_of(worker.Generate(generate(max_tokens=3), timeout=120))) == 3
            # The first one dies without a word; the second takes its place.
            stack.worker.process.kill()
            second.wait_ready()


def test_a_burst_beyond_the_queue_is_refused(demo_model: Path) -> None:
    flags = {"max-queued": 10, "max-sequences": 2}
    with running_stack(demo_model, gateway=False, worker_flags=flags) as stack:
        worker = worker_pb2_grpc.WorkerServiceStub(open_channel(stack.worker.address))
        assert worker.GetStats(worker_pb2.GetStatsRequest()).ready
        # Stopped, it finds all of them when it goes on.
        stack.worker.signal(signal.SIGSTOP)
        streams = [worker.Generate(generate(max_tokens=4), timeout=120) for _ in range(60)]
        stack.worker.signal(signal.SIGCONT)
        ends = []
        for stream in streams:
            try:
                ends.append(len(tokens_of(stream)))
            except grpc.RpcError as error:
                ends.append(error.code())
        # At most 10 without a table at any moment, 2 with one: the burst itself must be refused in part.
        assert set(ends) == {4, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert ends.count(4) >= 10


def run_worker(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "model_worker", "--listen=127.0.0.1:0", "--metrics=", *flags],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=REPOSITORY,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        check=False,
    )


def test_wrong_settings_end_the_start_with_one_line(demo_model: Path, tmp_path: Path) -> None:
    cases = {
        f"--model={tmp_path / 'nowhere'}": "no such model",
        f"--model={tmp_path}": "config.json",
        f"--model={demo_model} --num-blocks=0": "no room for KV blocks: needed 1474560 bytes",
        f"--model={demo_model} --kv-memory-gib=0.0001": "no room for KV blocks: needed 1474560 bytes",
        f"--model={demo_model} --max-sequences=99 --max-batch-tokens=8": "--max-sequences 99 exceeds",
        f"--model={demo_model} --device=cuda": "sees no CUDA device",
        f"--model={demo_model} --num-blocks=100000000": "KV blocks need 73728000737280 bytes, cpu has",
    }
    for flags, said in cases.items():
        ended = run_worker(*flags.split(" "))
        assert ended.returncode == 1, flags
        *_, last = ended.stderr.strip().splitlines()
        assert said in json.loads(last)["message"], flags
