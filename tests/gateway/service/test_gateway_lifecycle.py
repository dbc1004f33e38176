"""What a real gateway process does when its clients leave, its workers come and go, or it is told to stop."""

import asyncio
import contextlib
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from service.errors import error_info_of
from service.serving import Server

pytestmark = pytest.mark.e2e

ENDLESS = 1_000_000


def open_stream(gateway: Any, prompt: str = "abc", max_tokens: int = ENDLESS, timeout: float | None = 60) -> Any:
    """A stream that runs: its first message was read."""
    options = gateway_pb2.GenerateOptions(max_tokens=max_tokens, ignore_eos=True)
    stream = gateway.stub.Generate(gateway_pb2.GenerateRequest(prompt=prompt, options=options), timeout=timeout)
    next(stream)
    return stream


def started(start_gateway: Callable[..., Any], worker: Any, *arguments: str) -> Any:
    gateway = start_gateway(worker.address, *arguments)
    gateway.wait_event("ready")
    return gateway


def failure(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def test_a_client_that_leaves_ends_the_workers_call(start_worker: Any, start_gateway: Any) -> None:
    worker = start_worker("--token-seconds", "0.005")
    gateway = started(start_gateway, worker)
    stream = open_stream(gateway)
    stream.cancel()
    ended = worker.wait_event("ended")
    assert ended["how"] == "cancelled"
    assert ended["sent"] < ENDLESS


def test_two_hundred_cancels_leave_nothing_behind(start_worker: Any, start_gateway: Any) -> None:
    """B42: cut in the middle of an answer, each ends at the worker too, and the next call is served."""
    worker = start_worker("--token-seconds", "0.02")
    gateway = started(start_gateway, worker)
    for _ in range(20):
        for stream in [open_stream(gateway) for _ in range(10)]:
            stream.cancel()
    for _ in range(200):
        assert worker.wait_event("ended")["how"] == "cancelled"
    assert len(list(open_stream(gateway, max_tokens=5))) == 4


@pytest.mark.parametrize("calls", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_deadlines_that_race_the_last_message_end_every_call_once(
    start_worker: Any, start_gateway: Any, calls: int
) -> None:
    """B44."""
    worker = start_worker("--token-seconds", "0.005")
    gateway = started(start_gateway, worker, "--grace-seconds", "600")
    request = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(max_tokens=10))

    def ended(timeout: float) -> grpc.StatusCode:
        call = gateway.stub.Generate(request, timeout=timeout)
        with contextlib.suppress(grpc.RpcError):
            list(call)
        return call.code()

    def seconds() -> float:
        began = time.monotonic()
        assert ended(60) is grpc.StatusCode.OK
        return time.monotonic() - began

    # 10 tokens at 5 ms take 50 ms and what the machine adds while as many run: deadlines from an eighth to eight times
    # that, most of them near it, fall before, at and after the last message, also when the machine's pace changes.
    with ThreadPoolExecutor(8) as pool:
        usual = statistics.median(pool.map(lambda _: seconds(), range(24)))
        codes = list(pool.map(ended, [usual * 8 ** (number % 301 / 150 - 1) ** 3 for number in range(calls)]))
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
    # A call that leaked would hold the drain for the whole grace.
    gateway.signal(signal.SIGTERM)
    assert gateway.process.wait(60) == 0


def test_the_deadline_travels_to_the_worker(start_worker: Any, start_gateway: Any) -> None:
    worker = start_worker("--token-seconds", "0.01")
    gateway = started(start_gateway, worker)
    error = failure(lambda: list(open_stream(gateway, timeout=3.0)))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < worker.wait_event("request")["timeout"] <= 3.0
    assert worker.wait_event("ended")["how"] == "cancelled"


def test_the_gateway_says_how_far_a_call_came_before_its_deadline(start_worker: Any, start_gateway: Any) -> None:
    worker = start_worker("--token-seconds", "0.01")
    gateway = started(start_gateway, worker)
    said: list[str] = []
    # The 50 ms between the gateway's answer and the deadline may be too few on a busy machine, but not ten times.
    while len(said) < 10 and not any("the deadline passed after" in details for details in said):
        error = failure(lambda: list(open_stream(gateway, timeout=1.0)))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        said.append(error.details())
    assert "the deadline passed after" in said[-1]


def test_an_expired_deadline_never_reaches_the_worker(start_worker: Any, start_gateway: Any) -> None:
    worker = start_worker()
    gateway = started(start_gateway, worker)
    # Tokenizing 4 MiB takes far longer than the 50 ms until the deadline.
    request = gateway_pb2.GenerateRequest(prompt="x" * 4_000_000)
    assert failure(lambda: list(gateway.stub.Generate(request, timeout=0.05))).code() == (
        grpc.StatusCode.DEADLINE_EXCEEDED
    )
    list(open_stream(gateway, prompt="done", max_tokens=1))
    assert worker.wait_event("request")["prompt_tokens"] == 4


def test_readiness_follows_the_worker(start_worker: Any, start_gateway: Any, free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    gateway = start_gateway(address, "--migration-wait-seconds", "0")
    gateway.wait_health(serving=False)
    error = failure(lambda: open_stream(gateway))
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert address in error.details()
    info = error_info_of(error)
    assert info is not None
    assert info.reason == "NO_WORKER_READY"

    worker = start_worker("--listen", address)
    gateway.wait_event("ready")
    gateway.wait_health(serving=True)
    worker.signal(signal.SIGUSR1)
    gateway.wait_health(serving=False)
    # What the toy says of itself.
    assert failure(lambda: open_stream(gateway)).details() == f"no worker is ready: {address}: waiting for SIGUSR1"
    worker.signal(signal.SIGUSR1)
    gateway.wait_health(serving=True)
    # Until it was usable for the first time it was no reason to worry.
    levels = [event["level"] for event in gateway.seen if f"worker {address} " in str(event.get("message"))]
    assert levels
    assert set(levels) == {"INFO"}
    lost = gateway.wait_for(lambda event: f"worker {address} cannot be used" in str(event.get("message")))
    assert (lost["level"], "waiting for SIGUSR1" in lost["message"]) == ("WARNING", True)

    stream = open_stream(gateway)
    worker.end()
    assert failure(lambda: list(stream)).code() == grpc.StatusCode.UNAVAILABLE
    gateway.wait_health(serving=False)
    start_worker("--listen", address, "--model", "other")
    gateway.wait_health(serving=True)
    assert [model.id for model in gateway.stub.ListModels(gateway_pb2.ListModelsRequest()).models] == ["other"]


def test_a_frozen_worker_is_noticed(start_worker: Any, start_gateway: Any) -> None:
    """B73: and is used again when it goes on."""
    # A look each second, and two looks of 2 s without an answer: at most 1 + 2 + 2 s. On a busy machine they come late.
    worker = start_worker()
    gateway = started(start_gateway, worker)
    worker.signal(signal.SIGSTOP)
    gateway.wait_health(serving=False, seconds=90)
    error = failure(lambda: open_stream(gateway))
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert "does not answer" in error.details()
    worker.signal(signal.SIGCONT)
    gateway.wait_health(serving=True)
    assert len(list(open_stream(gateway, max_tokens=3))) == 2


def test_a_web_server_instead_of_a_worker_is_named(start_gateway: Any) -> None:
    """B50: with its address, and what was expected there."""
    web = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{web.server_port}"
    gateway = start_gateway(address)
    log = gateway.wait_for(lambda event: event.get("level") == "ERROR")
    web.shutdown()
    web.server_close()
    for said in (log["message"], failure(lambda: open_stream(gateway)).details()):
        assert address in said
        assert "does not speak gRPC" in said
        assert "octavo.worker.v1.WorkerService" in said


async def test_another_grpc_service_instead_of_a_worker_is_named(start_gateway: Any) -> None:
    other = Server([], lambda target: None)
    address = await other.start("127.0.0.1:0")
    await other.set_ready(True)
    gateway = await asyncio.to_thread(start_gateway, address)
    error = await asyncio.to_thread(gateway.wait_for, lambda event: event.get("level") == "ERROR")
    await other.stop(0)
    assert f"worker {address} cannot be used" in error["message"]
    assert "not one of octavo.worker.v1.WorkerService" in error["message"]


def test_a_gateway_that_cannot_start_says_why(start_gateway: Any, tmp_path: Path) -> None:
    first = start_gateway("127.0.0.1:1")
    for arguments, said in (
        (
            ["--listen", first.address],
            f"cannot listen on {first.address}: address already in use; choose another --listen",
        ),
        (
            ["--metrics", first.address],
            f"cannot listen on {first.address}: address already in use; choose another --metrics",
        ),
        (["--tokenizer", str(tmp_path / "nothing")], "nothing is not a folder"),
        (["--listen", "127.0.0.1:0", "--tls-certificate", "no.pem", "--tls-key", "no.key"], "no.key"),
        (["--listen", "127.0.0.1:0", "--worker-ca", __file__], f"{__file__} is no certificate in PEM"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "gateway", *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert (ended.returncode, ended.stdout) == (1, "")
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr


def test_two_workers_share_the_load_and_one_may_die(start_worker: Any, start_gateway: Any) -> None:
    workers = [start_worker("--token-seconds", "0.01") for _ in range(2)]
    gateway = start_gateway(",".join(worker.address for worker in workers))
    (model,) = _models_when(gateway, lambda models: [model.ready_workers for model in models] == [2])
    assert model.id == "bytes"
    streams = [open_stream(gateway) for _ in range(4)]
    for worker in workers:
        assert len([worker.wait_event("request") for _ in range(2)]) == 2
    workers[0].end()
    _models_when(gateway, lambda models: [model.ready_workers for model in models] == [1])
    assert len(list(open_stream(gateway, max_tokens=3))) == 2
    for stream in streams:
        stream.cancel()


def _models_when(gateway: Any, wanted: Callable[[Any], bool]) -> Any:
    """The served models once they are as wanted; the gateway's log of its workers tells when to look."""
    while True:
        models = gateway.stub.ListModels(gateway_pb2.ListModelsRequest()).models
        if wanted(models):
            return models
        gateway.wait_for(lambda event: str(event.get("message", "")).startswith("worker "))


def test_sigterm_lets_running_streams_finish(start_worker: Any, start_gateway: Any) -> None:
    """B91: none is cut within the grace."""
    worker = start_worker("--token-seconds", "0.01")
    gateway = started(start_gateway, worker, "--grace-seconds", "120")
    streams = [open_stream(gateway, max_tokens=100) for _ in range(10)]
    gateway.signal(signal.SIGTERM)
    gateway.wait_for(lambda event: "draining" in str(event.get("message", "")))
    for stream in streams:
        rest = list(stream)
        assert len(rest) == 99
        assert rest[-1].finish_reason == gateway_pb2.FINISH_REASON_LENGTH
    assert gateway.process.wait(60) == 0


def test_sigterm_refuses_new_calls_and_ends_what_outlives_the_grace(start_worker: Any, start_gateway: Any) -> None:
    """B91: with a status of its own, and exit status 0."""
    worker = start_worker("--token-seconds", "0.01")
    gateway = started(start_gateway, worker, "--grace-seconds", "1")
    streams = [open_stream(gateway) for _ in range(10)]
    gateway.signal(signal.SIGTERM)
    gateway.wait_for(lambda event: "draining" in str(event.get("message", "")))
    # The log line comes a moment before the door closes: a call may still get in, and gRPC itself cancels one that
    # crosses the GOAWAY on the wire. From the first refusal on, all are refused.
    codes: list[grpc.StatusCode] = []
    while grpc.StatusCode.UNAVAILABLE not in codes:
        try:
            streams.append(open_stream(gateway))
        except grpc.RpcError as error:
            codes.append(error.code())
    assert set(codes) <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert failure(lambda: open_stream(gateway)).code() == grpc.StatusCode.UNAVAILABLE
    for stream in streams:
        assert failure(lambda stream=stream: list(stream)).code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        )
    assert gateway.process.wait(60) == 0
    for _ in streams:
        assert worker.wait_event("ended")["how"] == "cancelled"


def test_a_slow_reader_holds_the_worker_back(start_worker: Any, start_gateway: Any) -> None:
    # The toy's messages take 8 bytes on the wire (5 of gRPC's frame, 3 of packed token ids), the gateway's about 80,
    # and each hop's window is 64 KiB: 8,192 + 800 messages, and about 1,000 in write buffers.
    worker = start_worker()
    gateway = started(start_gateway, worker)
    with grpc.insecure_channel(gateway.address, [("grpc.http2.bdp_probe", 0)]) as channel:
        options = gateway_pb2.GenerateOptions(max_tokens=ENDLESS, ignore_eos=True)
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        slow = stub.Generate(gateway_pb2.GenerateRequest(prompt="abc", options=options), timeout=280)
        next(slow)
        assert len(list(open_stream(gateway, max_tokens=20_000, timeout=240))) == 19_999
        slow.cancel()
    assert worker.wait_event("ended", how="cancelled")["sent"] < 12_000
