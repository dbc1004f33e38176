"""Single samples end at a real worker while the others go on, and what is wrong hurts nobody else."""

import json
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from byte_model import byte_model
from processes import Stack, running_stack
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model]

VOCAB = 258
PROMPT = [(31 * place + 7) % 250 for place in range(21)]
# What is generated whole, and what no machine generates before it is ended in the middle.
LONG, ENDLESS = 800, 16_000
BLOCK = 16
# Three samples of the whole context.
BLOCKS = 3 * (ENDLESS // BLOCK + 10)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = byte_model(tmp_path_factory.mktemp("bytes"), max_position_embeddings=ENDLESS + 100)
    worker = {"num-blocks": BLOCKS, "host-memory-mib": 0, "served-name": "bytes", "threads": 1}
    with running_stack(model, worker_flags=worker, gateway_flags={"http-listen": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture(scope="module")
def worker(stack: Stack) -> Iterator[worker_pb2_grpc.WorkerServiceStub]:
    with open_channel(stack.worker.address) as channel:
        yield worker_pb2_grpc.WorkerServiceStub(channel)


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Iterator[gateway_pb2_grpc.GatewayServiceStub]:
    with open_channel(stack.gateway.address) as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)


def asked(max_tokens: int, **fields: Any) -> worker_pb2.GenerateRequest:
    sampling = {"temperature": 1.0, "seed": 5, **fields.pop("sampling", {})}
    stop = {"max_tokens": max_tokens, "ignore_eos": True}
    return worker_pb2.GenerateRequest(token_ids=PROMPT, sampling=sampling, stop=stop, **fields)


def lengths(responses: list[Any], n: int) -> list[int]:
    """How many tokens each sample brought."""
    return [sum(len(one.token_ids) for one in responses if one.index == index) for index in range(n)]


def test_a_sample_ends_by_rpc_while_the_others_go_on(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    whole = list(worker.Generate(asked(LONG, n=3), timeout=120))
    assert lengths(whole, 3) == [LONG] * 3
    call = worker.Generate(asked(ENDLESS, n=3, request_id="three"), timeout=240)
    responses = [next(call)]
    answer = worker.AbortSamples(worker_pb2.AbortSamplesRequest(request_id="three", indexes=[1]))
    assert answer.found
    ends: dict[int, int] = {}
    while not ends or min(lengths(responses, 3)[::2]) < LONG:
        responses.append(response := next(call))
        if response.HasField("finished"):
            ends[response.index] = response.finished.reason
    call.cancel()
    assert ends == {1: sampling_pb2.FINISH_REASON_ABORTED}
    texts = [
        [[token for one in run if one.index == index for token in one.token_ids][:LONG] for index in range(3)]
        for run in (whole, responses)
    ]
    assert (texts[1][0], texts[1][2]) == (texts[0][0], texts[0][2])
    assert texts[1][1] == texts[0][1][: len(texts[1][1])]


def test_samples_that_cannot_end_alone_are_named(worker: worker_pb2_grpc.WorkerServiceStub) -> None:
    def abort(request_id: str, *indexes: int) -> worker_pb2.AbortSamplesResponse:
        return worker.AbortSamples(worker_pb2.AbortSamplesRequest(request_id=request_id, indexes=indexes))

    assert not abort("nobody", 0).found
    best = worker.Generate(asked(ENDLESS, n=2, best_of=3, request_id="best"), timeout=240)
    plain = worker.Generate(asked(ENDLESS, n=2, request_id="plain"), timeout=240)
    next(plain)
    while worker.GetStats(worker_pb2.GetStatsRequest(), timeout=60).running_requests < 2:
        assert best.is_active()
    for request_id, indexes, code in (
        ("best", (1,), grpc.StatusCode.FAILED_PRECONDITION),
        ("plain", (), grpc.StatusCode.INVALID_ARGUMENT),
        ("plain", (0, 2), grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            abort(request_id, *indexes)
        assert caught.value.code() is code
    # Neither has lost anything by it: both still run, with all of their samples.
    for request_id in ("best", "plain"):
        assert worker.Abort(worker_pb2.AbortRequest(request_id=request_id), timeout=60).found
    assert sorted({one.index for one in plain if one.HasField("finished")}) == [0, 1]
    best.cancel()


def until_left(stack: Stack, samples: int) -> None:
    """Wait, by asking, until so many samples of the only request are in the pool."""
    deadline = time.monotonic() + 60
    with open_channel(stack.manager.address) as channel:
        manager = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        while True:
            look = manager.InspectPool(inspect_pb2.InspectPoolRequest(pool="default"), timeout=60)
            if len(look.sequences) == samples:
                return
            assert look.sequences, "all ended together"
            assert time.monotonic() < deadline, look


def continued(gateway: gateway_pb2_grpc.GatewayServiceStub, max_tokens: int, *stop: str) -> Any:
    """The call for three samples."""
    options = gateway_pb2.GenerateOptions(max_tokens=max_tokens, n=3, seed=5, ignore_eos=True, stop=stop)
    request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=PROMPT), options=options)
    return gateway.Generate(request, timeout=240)


@pytest.fixture(scope="module")
def texts(gateway: gateway_pb2_grpc.GatewayServiceStub) -> list[str]:
    """What the three samples come to."""
    whole = list(continued(gateway, LONG))
    return ["".join(one.text for one in whole if one.index == index) for index in range(3)]


@pytest.fixture(scope="module")
def stop(texts: list[str]) -> str:
    """Two characters that come early in the first sample, and nowhere in the others."""
    pairs = (texts[0][place : place + 2] for place in range(20, 100))
    return next(pair for pair in pairs if pair.isascii() and not any(pair in other for other in texts[1:]))


def test_a_stop_string_ends_its_sample_at_the_worker(
    gateway: gateway_pb2_grpc.GatewayServiceStub, stack: Stack, texts: list[str], stop: str
) -> None:
    """Its blocks come back while the two that go on are far from their ends."""
    call = continued(gateway, ENDLESS, stop)
    answers = []
    while not answers or not answers[-1].finish_reason:
        answers.append(next(call))
    assert (answers[-1].index, answers[-1].finish_reason) == (0, gateway_pb2.FINISH_REASON_STOP)
    assert answers[-1].stop_reason == stop
    until_left(stack, 2)
    told = ["".join(one.text for one in answers if one.index == index) for index in range(3)]
    # A byte per token, and no character has more than four of them.
    told_for_certain = LONG // 4
    while min(map(len, told[1:])) < told_for_certain:
        response = next(call)
        assert not response.finish_reason
        told[response.index] += response.text
    call.cancel()
    assert told[0] == texts[0][: texts[0].index(stop)]
    assert [one[:told_for_certain] for one in told[1:]] == [whole[:told_for_certain] for whole in texts[1:]]
    until_left(stack, 0)


def test_so_it_does_where_the_worker_reads_the_text(stack: Stack, stop: str) -> None:
    """The same by the second face, which looks for stop strings itself."""
    with open_channel(stack.worker.address) as channel:
        engine = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        params = vllm_pb2.SamplingParams(
            temperature=1.0, seed=5, n=3, max_tokens=ENDLESS, ignore_eos=True, stop=[stop], skip_special_tokens=True
        )
        prompt = vllm_pb2.TokenizedInput(input_ids=PROMPT)
        request = vllm_pb2.GenerateRequest(tokenized=prompt, sampling_params=params, stream=True)
        call = engine.Generate(request, timeout=240)
        ended = next(one.complete for one in call if one.HasField("complete"))
        assert (ended.index, ended.finish_reason) == (0, "stop")
        until_left(stack, 2)
        call.cancel()
        until_left(stack, 0)


def test_a_beam_search_stops_early_when_its_client_says_so(
    gateway: gateway_pb2_grpc.GatewayServiceStub, worker: worker_pb2_grpc.WorkerServiceStub
) -> None:
    """20 of 258 tokens stop a text, so three are finished soon; a penalty of 2 makes longer ones score better."""
    found = {}
    for early in (False, True):
        options = gateway_pb2.GenerateOptions(
            max_tokens=24, n=3, beam_width=3, length_penalty=2.0, early_stopping=early, stop_token_ids=range(20)
        )
        request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=PROMPT), options=options)
        answers = list(gateway.Generate(request, timeout=120))
        direct = worker_pb2.GenerateRequest(
            token_ids=PROMPT,
            n=3,
            beam_search=sampling_pb2.BeamSearch(width=3, length_penalty=2.0, early_stopping=early),
            stop=sampling_pb2.StopConditions(max_tokens=24, stop_token_ids=range(20)),
        )
        told = list(worker.Generate(direct, timeout=120))
        found[early], expected = (
            [[token for one in run if one.index == index for token in one.token_ids] for index in range(3)]
            for run in (answers, told)
        )
        assert found[early] == expected
    assert found[True] != found[False]


def test_what_is_wrong_with_a_request_hurts_nobody_else(
    stack: Stack, worker: worker_pb2_grpc.WorkerServiceStub, gateway: gateway_pb2_grpc.GatewayServiceStub
) -> None:
    """B64, B66: biases and temperatures that are none, on every surface, while five streams run."""
    alone = list(worker.Generate(asked(200, sampling={"seed": 0}), timeout=120))
    calls = [worker.Generate(asked(200, sampling={"seed": seed}), timeout=120) for seed in range(5)]
    running = [[next(call)] for call in calls]

    biases: list[dict[str, Any]] = [
        {"logit_bias": {token: bias}}
        for token, bias in ((VOCAB, 1.0), (10**9, 1.0), (1, 101.0), (1, -101.0), (1, math.nan))
    ]
    for bad in [*biases, {"temperature": -1.0}, {"temperature": math.nan}]:
        with pytest.raises(grpc.RpcError) as caught:
            list(worker.Generate(asked(4, sampling=bad), timeout=120))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"sampling.{next(iter(bad))}" in caught.value.details()
        request = gateway_pb2.GenerateRequest(prompt="a", options=gateway_pb2.GenerateOptions(**bad))
        with pytest.raises(grpc.RpcError) as caught:
            list(gateway.Generate(request, timeout=120))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    url = f"http://{stack.gateway.ready['http']}/v1/completions"
    for token, bias in (("-1", 1), (str(VOCAB), 1), ("AI", 1), ("1", 101), ("1", math.nan)):
        body = json.dumps({"prompt": "a", "logit_bias": {token: bias}}).encode()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=60)
        assert refused.value.code == 400

    with ThreadPoolExecutor(5) as pool:
        rest = list(pool.map(list, calls))
    runs = [[*first, *more] for first, more in zip(running, rest, strict=True)]
    texts = [[token for one in run for token in one.token_ids] for run in [alone, *runs]]
    assert texts[1] == texts[0]
    assert list(map(len, texts)) == [200] * 6


def test_services_that_were_called_end_without_a_word_of_forks(stack: Stack) -> None:
    """B48: the last test of this stack. gRPC warns of whoever forks behind its back, and such a child hangs."""
    for service in (stack.gateway, stack.worker, stack.manager):
        assert service.stop() == 0
        assert [line for line in service.log if re.search(r"\bfork", line)] == []
