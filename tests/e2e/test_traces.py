"""Traces from the client to the steps of the device: real services, and a real collector to take them."""

import json
import secrets
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from byte_model import byte_model
from otlp_receiver import Received, Receiver, receiving
from processes import Stack, running_stack

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import open_channel

pytestmark = pytest.mark.e2e

SERVER, CLIENT = 2, 3
GENERATE = "octavo.gateway.v1.GatewayService/Generate"
CHAT = "octavo.gateway.v1.GatewayService/Chat"
WORKER = "octavo.worker.v1.WorkerService/Generate"
PARTS = ("queue", "prefill", "decode")

BLOCK = 16
# 200 blocks hold 3,200 tokens: one request of 16 + 2,500 fits, two of them do not. They come at once; where the second
# was held up until the first was nearly over, they come again.
BLOCKS, LONG, TIMES = 200, 2_500, 10
FLAGS = {"num-blocks": BLOCKS, "block-size": BLOCK, "host-memory-mib": 0, "threads": 1, "served-name": "tiny"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture(scope="module")
def stack(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = byte_model(tmp_path_factory.mktemp("traced"), max_position_embeddings=BLOCKS * BLOCK)
    on = {"tracing": "true"}
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{receiver.address}")
        environ.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        environ.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        with running_stack(
            model, worker_flags={**FLAGS, **on}, gateway_flags={**on, "http-listen": "127.0.0.1:0"}
        ) as it:
            yield it


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Iterator[gateway_pb2_grpc.GatewayServiceStub]:
    with open_channel(stack.gateway.address) as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)


class Client:
    """A client's own span, of which the gateway's is to be a part."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)
        self.traceparent = f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("traceparent", self.traceparent),)


def one_of(trace: list[Received], name: str) -> Received:
    (found,) = [span for span in trace if span.name == name]
    return found


def prompt_request(prompt: str, max_tokens: int) -> gateway_pb2.GenerateRequest:
    options = gateway_pb2.GenerateOptions(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return gateway_pb2.GenerateRequest(prompt=prompt, options=options, request_id="traced")


def test_a_trace_goes_from_the_client_to_the_steps_of_the_device(gateway: Any, receiver: Receiver) -> None:
    # Cold, then warm: 33 tokens fill two blocks, which the second finds.
    for cached in (0, 2 * BLOCK):
        client = Client()
        answer = list(gateway.Generate(prompt_request("x" * 33, 8), metadata=client.metadata, timeout=60))
        assert answer[-1].usage.completion_tokens == 8
        trace = receiver.trace(client.trace_id, GENERATE, WORKER, WORKER, *PARTS)
        assert len(trace) == 6

        request = one_of(trace, GENERATE)
        call, served = sorted((span for span in trace if span.name == WORKER), key=lambda span: span.kind, reverse=True)
        assert (request.service, call.service, served.service) == ("octavo-gateway", "octavo-gateway", "octavo-worker")
        assert (request.kind, call.kind, served.kind) == (SERVER, CLIENT, SERVER)
        assert (request.parent_id, call.parent_id, served.parent_id) == (client.span_id, request.span_id, call.span_id)
        assert request.start <= call.start <= served.start < served.end
        assert call.end <= request.end

        told = request.attributes
        assert told["gen_ai.operation.name"] == "text_completion"
        assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "tiny"
        assert told["gen_ai.response.id"] == told["octavo.request_id"] == "traced"
        assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (33, 8)
        assert told["gen_ai.usage.cache_read.input_tokens"] == cached
        assert told["gen_ai.response.finish_reasons"] == ["length"]
        assert told["rpc.response.status_code"] == "OK"
        assert not request.is_error

        parts = [one_of(trace, name) for name in PARTS]
        assert {part.parent_id for part in parts} == {served.span_id}
        # One after the other, without a gap, as long as the worker had it.
        assert [part.end for part in parts[:-1]] == pytest.approx([part.start for part in parts[1:]], abs=1e6)
        told = served.attributes
        assert told["gen_ai.usage.cache_read.input_tokens"] == cached
        assert told["octavo.kv.pool"] == "default"
        # One step computes the prompt and samples, seven more sample one token each; nobody else runs.
        ((first, last),) = ranges_of(served)
        assert last - first + 1 == 8
        assert told["octavo.kv.steps"]
        assert [event[0] for event in served.events] == ["first token"]


def ranges_of(span: Received) -> list[list[int]]:
    """The device steps of a span, as first and last of each run."""
    ranges = [[int(end) for end in one.split("-")] for one in span.attributes["octavo.device_steps"].split(",")]
    assert ranges == sorted(ranges)
    assert sum(one[-1] - one[0] + 1 for one in ranges) == span.attributes["octavo.device_steps.count"]
    return ranges


def test_preemptions_are_events_and_breaks_in_the_steps(gateway: Any, receiver: Receiver) -> None:
    def run(client: Client) -> int:
        request = prompt_request("y" * BLOCK, LONG)
        request.request_id = ""
        return int(list(gateway.Generate(request, metadata=client.metadata, timeout=120))[-1].usage.preemptions)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(TIMES):
            clients = [Client(), Client()]
            preemptions = list(pool.map(run, clients))
            if any(preemptions):
                break
    assert any(preemptions)
    for client, count in zip(clients, preemptions, strict=True):
        trace = receiver.trace(client.trace_id, WORKER, WORKER, GENERATE)
        served = next(span for span in trace if span.name == WORKER and span.kind == SERVER)
        assert [event[2]["mode"] for event in served.events if event[0] == "preempted"] == ["recompute"] * count
        assert served.attributes["octavo.preemptions"] == count
        assert one_of(trace, GENERATE).attributes["octavo.preemptions"] == count
        assert all(served.start <= at <= served.end for _, at, _ in served.events)
        if count:
            assert len(ranges_of(served)) > 1


def post(stack: Stack, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(f"http://{stack.gateway.ready['http']}{path}", data, sent)
    opener = urllib.request.build_opener(_Errors)
    with opener.open(request, timeout=60) as response:
        return response.status, dict(response.headers), response.read().decode()


class _Errors(urllib.request.HTTPErrorProcessor):
    """Lets every status be an answer."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response


def test_http_joins_the_trace_of_its_header(stack: Stack, receiver: Receiver) -> None:
    client = Client()
    body = {"prompt": ["one", "two"], "max_tokens": 4, "stream": True, "ignore_eos": True, "n": 2}
    status, headers, text = post(stack, "/v1/completions", body, traceparent=client.traceparent, x_request_id="mine")
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    # Each prompt is a request of its own to the worker.
    trace = receiver.trace(client.trace_id, "POST /v1/completions", *[WORKER] * 4, *PARTS, *PARTS)
    request = one_of(trace, "POST /v1/completions")
    assert request.parent_id == client.span_id
    told = request.attributes
    assert (told["http.request.method"], told["http.route"]) == ("POST", "/v1/completions")
    assert told["http.response.status_code"] == 200
    assert told["octavo.request_id"] == headers["x-request-id"]
    # Two prompts of 3 tokens; two answers of 4 tokens to each.
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (2 * 3, 2 * 2 * 4)
    assert told["gen_ai.response.finish_reasons"] == ["length"] * 4
    served = [span for span in trace if span.name == WORKER and span.kind == SERVER]
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in served] == [["length"] * 2] * 2
    calls = {span.span_id for span in trace if span.name == WORKER and span.kind == CLIENT}
    assert {span.parent_id for span in served} == calls
    # Text is nobody's business here.
    assert '"one"' not in str(trace)


def test_errors_are_told_and_the_callers_mistakes_are_no_faults(gateway: Any, stack: Stack, receiver: Receiver) -> None:
    client = Client()
    with pytest.raises(grpc.RpcError):
        list(gateway.Generate(prompt_request("x", -1), metadata=client.metadata, timeout=60))
    (refused,) = receiver.trace(client.trace_id, GENERATE)
    assert refused.attributes["rpc.response.status_code"] == refused.attributes["error.type"] == "INVALID_ARGUMENT"
    assert not refused.is_error

    client = Client()
    stream = gateway.Generate(prompt_request("x", LONG), metadata=client.metadata, timeout=60)
    next(stream)
    stream.cancel()
    trace = receiver.trace(client.trace_id, GENERATE, WORKER, WORKER)
    assert one_of(trace, GENERATE).attributes["error.type"] == "CANCELLED"
    assert not any(span.is_error for span in trace)

    client = Client()
    assert post(stack, "/v1/chat/completions", b"{", traceparent=client.traceparent)[0] == 400
    (refused,) = receiver.trace(client.trace_id, "POST /v1/chat/completions")
    assert refused.attributes["http.response.status_code"] == 400
    assert not refused.is_error


def test_a_client_that_samples_nothing_is_heeded(gateway: Any, receiver: Receiver) -> None:
    unsampled, sampled = Client(sampled=False), Client()
    for client in (unsampled, sampled):
        assert list(gateway.Generate(prompt_request("x", 2), metadata=client.metadata, timeout=60))
    # What came later is here, so what came before would be.
    receiver.trace(sampled.trace_id, GENERATE, WORKER, WORKER, *PARTS)
    assert not [span for span in receiver.spans if span.trace_id == unsampled.trace_id]


def test_log_lines_of_both_services_name_the_request_and_its_trace(
    gateway: Any, stack: Stack, receiver: Receiver
) -> None:
    client = Client()
    request = prompt_request("x", 2)
    request.request_id = "find-me"
    assert list(gateway.Generate(request, metadata=client.metadata, timeout=60))
    receiver.trace(client.trace_id, GENERATE, WORKER, WORKER)
    for process, ended in ((stack.gateway, "generation ended"), (stack.worker, "request ended")):
        process.wait_log(ended, beside="find-me")
        lines = [json.loads(line) for line in process.wait_log("find-me")]
        assert any(line["message"].startswith(ended) for line in lines)
        assert all((line["request_id"], line["trace_id"]) == ("find-me", client.trace_id) for line in lines)


def test_a_worker_names_what_it_refuses(stack: Stack) -> None:
    with open_channel(stack.worker.address) as channel:
        worker = worker_pb2_grpc.WorkerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(worker.Generate(worker_pb2.GenerateRequest(request_id="bad-one"), timeout=60))
    assert dict(caught.value.trailing_metadata())["x-request-id"] == "bad-one"
    (line,) = [json.loads(line) for line in stack.worker.wait_log("bad-one")]
    assert line["request_id"] == "bad-one"
    assert "INVALID" in line["message"]
