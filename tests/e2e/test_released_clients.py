"""Clients and a manager of every released baseline beside today's services.

A client of a baseline knows the descriptors in `protos/released/` and nothing else. What it is told through them must
be what today's stubs are told. The manager of the release is started from the commit that made the baseline, and
today's worker on it writes the same tokens as on today's.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from byte_model import byte_model
from older_build import RELEASED, Build, NoOlderBuild, older_build
from processes import ServiceProcess, Stack, running_stack
from released_client import Baseline, ReleasedClient

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(900)]

PROMPT = "The rain in Spain"
WORKER = {"num-blocks": 2_048, "block-size": 4, "dtype": "float32", "threads": 1}
# 8 streams of 24 + 40 tokens would take 8 * 16 blocks, and 3 samples more.
SMALL = {"num-blocks": 64}
OUTPUT = 40
OPTIONS = {"max_tokens": 12, "temperature": 1.0, "seed": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # An answer without a limit takes seconds.
    return byte_model(tmp_path_factory.mktemp("tiny") / "bytes", max_position_embeddings=8_192)


@pytest.fixture(scope="module")
def stack(model: Path) -> Iterator[Stack]:
    # With a token, since a gateway has its registry only then.
    with running_stack(model, worker_flags=WORKER, gateway_flags={"registration-token": "0" * 32}) as running:
        yield running


@pytest.fixture(scope="module", params=sorted(RELEASED.glob("*.binpb")), ids=lambda path: path.stem)
def released(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def baseline(released: Path) -> Baseline:
    return Baseline(released)


class Clients:
    """A client of the baseline per service, and channels for today's."""

    def __init__(self, stack: Stack, baseline: Baseline) -> None:
        self.message = baseline.message
        self.channels = {
            name: open_channel(process.address)
            for name, process in (("gateway", stack.gateway), ("worker", stack.worker), ("kv", stack.manager))
        }
        self._clients = {name: ReleasedClient(baseline, channel) for name, channel in self.channels.items()}

    def call(self, method: str, request: Any) -> Any:
        """``gateway.v1.GatewayService.Chat`` and such; to the service that has it."""
        return self._clients[method.partition(".")[0]].call(method, request)


@pytest.fixture(scope="module")
def clients(stack: Stack, baseline: Baseline) -> Iterator[Clients]:
    made = Clients(stack, baseline)
    yield made
    for channel in made.channels.values():
        channel.close()


def test_every_released_call_is_still_there(clients: Clients, baseline: Baseline) -> None:
    """An empty request is refused in many ways, but never as one of an unknown call."""
    # Drain would be obeyed.
    methods = [method for method in baseline.methods() if method.name != "Drain"]
    assert len(methods) >= 24
    missing = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
    codes = {method.full_name: code_of_empty(clients, method) for method in methods}
    assert {name: code for name, code in codes.items() if code in missing} == {}


def code_of_empty(clients: Clients, method: Any) -> grpc.StatusCode:
    """What a call with an empty message, or a stream of one, ends with."""
    empty = clients.message(method.input_type.full_name.removeprefix("octavo."))
    try:
        answer = clients.call(method.full_name.removeprefix("octavo."), [empty] if method.client_streaming else empty)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_a_released_client_reads_and_writes_text(clients: Clients) -> None:
    today = gateway_pb2_grpc.GatewayServiceStub(clients.channels["gateway"])
    request = clients.message("gateway.v1.GenerateRequest", prompt=PROMPT, options={**OPTIONS, "logprobs": 1, "n": 2})
    heard = list(clients.call("gateway.v1.GatewayService.Generate", request))
    told = list(
        today.Generate(
            gateway_pb2.GenerateRequest(
                prompt=PROMPT, options=gateway_pb2.GenerateOptions(**OPTIONS, logprobs=1, n=2), request_id="today"
            )
        )
    )
    assert texts(heard) == texts(told)
    assert sorted(texts(heard)) == [0, 1]
    assert usages(heard) == usages(told) == {index: (len(PROMPT), 12) for index in (0, 1)}
    assert logprobs(heard) == pytest.approx(logprobs(told), abs=1e-3)


def texts(responses: list[Any]) -> dict[int, tuple[str, list[int]]]:
    indexes = {response.index for response in responses}
    return {
        index: (
            "".join(one.text for one in responses if one.index == index),
            [token for one in responses if one.index == index for token in one.token_ids],
        )
        for index in indexes
    }


def usages(responses: list[Any]) -> dict[int, tuple[int, int]]:
    ends = [one for one in responses if one.finish_reason]
    return {one.index: (one.usage.prompt_tokens, one.usage.completion_tokens) for one in ends}


def logprobs(responses: list[Any]) -> list[float]:
    ordered = sorted(responses, key=lambda one: one.index)
    return [entry.token.logprob for one in ordered for entry in one.logprobs]


def test_a_released_client_chats_and_tokenizes(clients: Clients) -> None:
    message = clients.message
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    tokenized = clients.call("gateway.v1.GatewayService.Tokenize", message("gateway.v1.TokenizeRequest", chat=chat))
    assert "Hello" in tokenized.rendered
    heard = list(
        clients.call("gateway.v1.GatewayService.Chat", message("gateway.v1.ChatRequest", **chat, options=OPTIONS))
    )
    assert [one.role for one in heard][:2] == ["assistant", ""]
    assert heard[-1].usage.prompt_tokens == len(tokenized.token_ids)
    ids = [token for one in heard for token in one.token_ids]
    request = message("gateway.v1.DetokenizeRequest", token_ids=ids, skip_special_tokens=True)
    text = clients.call("gateway.v1.GatewayService.Detokenize", request).text
    assert "".join(one.content for one in heard) == text
    listed = clients.call("gateway.v1.GatewayService.ListModels", message("gateway.v1.ListModelsRequest"))
    assert [model.ready_workers for model in listed.models] == [1]


def test_a_released_client_is_refused_by_name(clients: Clients) -> None:
    wrong = clients.message("gateway.v1.GenerateRequest", prompt=PROMPT, options={"top_p": 2.0})
    with pytest.raises(grpc.RpcError) as caught:
        list(clients.call("gateway.v1.GatewayService.Generate", wrong))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "options.top_p" in caught.value.details()


def test_a_released_gateway_drives_the_worker(clients: Clients) -> None:
    """What a gateway of that time sends a worker of today."""
    message = clients.message
    described = clients.call("worker.v1.WorkerService.GetModel", message("worker.v1.GetModelRequest"))
    assert (described.block_size, described.num_blocks) == (4, 2_048)
    pieces = list(clients.call("worker.v1.WorkerService.GetTokenizer", message("worker.v1.GetTokenizerRequest")))
    assert "tokenizer.json" in {piece.name for piece in pieces}
    fields = {
        "token_ids": list(range(20)),
        "sampling": {"temperature": 1.0, "seed": 3},
        "stop": {"max_tokens": 8, "ignore_eos": True},
    }
    request = message("worker.v1.GenerateRequest", **fields, n=2, logprobs=1)
    heard = list(clients.call("worker.v1.WorkerService.Generate", request))
    today = worker_pb2_grpc.WorkerServiceStub(clients.channels["worker"])
    told = list(today.Generate(worker_request(list(range(20)), 8, seed=3, n=2)))
    assert sampled(heard) == sampled(told)
    assert heard[0].started.seed == 3
    # A stream that the old gateway ends by name.
    endless = message("worker.v1.GenerateRequest", token_ids=[1, 2], request_id="old", stop={"ignore_eos": True})
    stream = clients.call("worker.v1.WorkerService.Generate", endless)
    next(stream)
    abort = message("worker.v1.AbortRequest", request_id="old")
    assert clients.call("worker.v1.WorkerService.Abort", abort).found
    *_, last = stream
    assert last.finished.reason == sampling_pb2.FINISH_REASON_ABORTED
    stats = clients.call("worker.v1.WorkerService.GetStats", message("worker.v1.GetStatsRequest"))
    assert stats.ready


def test_a_released_worker_attaches_to_the_manager(clients: Clients) -> None:
    """What a worker of that time, and those who look on, say to a manager of today."""
    message, call = clients.message, clients.call
    kv = "kv.v1.KvManagerService"
    capabilities = call(f"{kv}.GetCapabilities", message("kv.v1.GetCapabilitiesRequest"))
    assert len(capabilities.capabilities) >= 15
    spec = {"pool": "old", "worker_id": "old", "num_blocks": 8, "block_size": 4, "reuse_regime": 1}
    attached = call(f"{kv}.Attach", [message("kv.v1.AttachRequest", pool=spec)])
    epoch = attached.header.epoch
    ids = b"".join(token.to_bytes(4, "little") for token in range(9))
    admit = {"seq": 1, "token_ids": ids, "num_tokens": 9, "arrival": 1}
    first = message("kv.v1.StepRequest", pool="old", epoch=epoch, step=1, admits=[admit])
    answer = call(f"{kv}.Step", first)
    assert [(grant.seq, list(grant.blocks), grant.granted_tokens) for grant in answer.grants] == [(1, [1, 2, 3], 9)]
    release = {"seq": 1, "reason": 1}
    second = message("kv.v1.StepRequest", pool="old", epoch=epoch, step=2, completed_step=1, releases=[release])
    (ended,) = call(f"{kv}.Steps", [second])
    assert (ended.stats.referenced_blocks, ended.stats.cached_blocks) == (0, 2)
    # Both full blocks are found: 8 of 9 tokens.
    matched = call(f"{kv}.MatchPrefix", message("kv.v1.MatchPrefixRequest", pools=["old"], token_ids=ids))
    assert matched.matches[0].cached_tokens == 8
    blocks = call(f"{kv}.InspectBlocks", message("kv.v1.InspectBlocksRequest", pool="old", first_block=1, count=8))
    assert sum(bool(block.digest) for block in blocks.blocks) == 2
    verdict = call(f"{kv}.CheckIntegrity", message("kv.v1.CheckIntegrityRequest", pool="old"))
    assert list(verdict.violations) == []
    watch = call(f"{kv}.Watch", message("kv.v1.WatchRequest", pool="old"))
    assert next(watch).HasField("snapshot")
    watch.cancel()
    call(f"{kv}.Detach", message("kv.v1.DetachRequest", pool="old", epoch=epoch))


# --- a manager of the release


@pytest.fixture(scope="module")
def build(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    try:
        return older_build(released, tmp_path_factory.mktemp("older"))
    except NoOlderBuild as reason:
        pytest.skip(f"no manager of that release here: {reason}")


def worker_request(ids: list[int], max_tokens: int, *, seed: int | None, n: int = 1) -> worker_pb2.GenerateRequest:
    """Greedy without a seed."""
    return worker_pb2.GenerateRequest(
        token_ids=ids,
        sampling=sampling_pb2.SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed),
        stop=sampling_pb2.StopConditions(max_tokens=max_tokens, ignore_eos=True),
        logprobs=1,
        n=n,
    )


def sampled(responses: list[Any]) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    for one in responses:
        tokens.setdefault(one.index, []).extend(one.token_ids)
    return tokens


def all_kinds(process: ServiceProcess) -> tuple[list[Any], worker_pb2.GetStatsResponse]:
    """Greedy, seeded, forked and shared; on a ``SMALL`` pool the eight that come at once are too many."""
    with open_channel(process.address) as channel:
        return answers_of(worker_pb2_grpc.WorkerServiceStub(channel), process)


def answers_of(
    worker: worker_pb2_grpc.WorkerServiceStub, process: ServiceProcess
) -> tuple[list[Any], worker_pb2.GetStatsResponse]:
    prompt = list(range(24))
    one_by_one = [worker_request(prompt, OUTPUT, seed=seed, n=n) for seed, n in ((None, 1), (3, 1), (4, 3), (None, 1))]
    answers: list[Any] = [sampled(list(worker.Generate(request))) for request in one_by_one]
    prompts = [[*range(place, 24 + place)] for place in range(8)]
    # Stopped, it finds all of them when it goes on, and none has ended when the last one comes.
    process.signal(signal.SIGSTOP)
    at_once = [worker.Generate(worker_request(ids, OUTPUT, seed=place)) for place, ids in enumerate(prompts)]
    process.signal(signal.SIGCONT)
    answers += [sampled(list(call)) for call in at_once]
    return answers, worker.GetStats(worker_pb2.GetStatsRequest())


def test_the_build_is_the_released_one(build: Build) -> None:
    """Neither its modules nor its stubs are those of today, which the environment has too."""
    code = "import kv_manager, service, octavo.kv.v1.steps_pb2 as stubs"
    code += "; print(kv_manager.__file__, service.__file__, stubs.__file__)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=build.folder,
        env={**os.environ, **build.environ},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [Path(place).is_relative_to(build.folder) for place in said.split()] == [True] * 3


def test_a_released_manager_serves_todays_worker(stack: Stack, model: Path, build: Build) -> None:
    expected, _ = all_kinds(stack.worker)
    with ServiceProcess(
        "kv_manager", "--listen=127.0.0.1:0", "--metrics=", environ=build.environ, folder=build.folder
    ) as manager:
        manager.wait_ready()
        where = {"model": model, "manager": manager.address, "listen": "127.0.0.1:0", "metrics": ""}
        flags = {**WORKER, **SMALL, **where}
        with ServiceProcess("model_worker", *[f"--{name}={value}" for name, value in flags.items()]) as worker:
            found, stats = all_kinds(worker.wait_ready())
    assert found == expected
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert stats.forks > 0
