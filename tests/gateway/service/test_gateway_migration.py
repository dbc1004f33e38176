"""A real gateway process whose toy workers die, leave or freeze at a token the test names, with a stream under way.

The toy answers a prompt with the prompt, repeated, one byte per token, and takes no resume that begins otherwise. A
worker that halts after n tokens is killed there, so each test knows which token comes from where. The first worker
listed gets the first request.
"""

import itertools
import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
import pytest

from octavo.gateway.v1 import gateway_pb2
from service.errors import error_info_of

pytestmark = pytest.mark.e2e

# A process may take a while to start.
PATIENT = ("--migration-wait-seconds", "90")


class Answer(NamedTuple):
    """One answer, put together."""

    text: str
    tokens: int
    last: gateway_pb2.GenerateResponse


@pytest.fixture
def two(start_worker: Any, start_gateway: Any) -> Callable[..., tuple[Any, Any, Any]]:
    """``two(flags of the first worker, flags of the gateway)``: both workers and a gateway that can use both."""

    def start(first: tuple[str, ...], gateway: tuple[str, ...] = (), second: tuple[str, ...] = ()) -> Any:
        workers = [start_worker(*first), start_worker(*second)]
        front = start_gateway(",".join(worker.address for worker in workers), *gateway)
        for _ in workers:
            front.wait_for(lambda event: "is ready" in str(event.get("message")))
        return *workers, front

    return start


def begin(gateway: Any, prompt: str | list[int], timeout: float = 120, **options: Any) -> Any:
    request = gateway_pb2.GenerateRequest(options=gateway_pb2.GenerateOptions(**options))
    if isinstance(prompt, str):
        request.prompt = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return gateway.stub.Generate(request, timeout=timeout)


def answers(responses: Any) -> dict[int, Answer]:
    """What came, by index."""
    put: dict[int, list[gateway_pb2.GenerateResponse]] = {}
    for response in responses:
        put.setdefault(response.index, []).append(response)
    return {
        index: Answer("".join(one.text for one in own), sum(len(one.token_ids) for one in own), own[-1])
        for index, own in put.items()
    }


def failure(stream: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    return caught.value


def kill_when_halted(worker: Any) -> None:
    worker.wait_event("halted")
    worker.signal(signal.SIGKILL)


class Heard:
    """A stream of which the first messages, one per token, were read already: no kill can take them back."""

    def __init__(self, stream: Any, tokens: int) -> None:
        self._first = [next(stream) for _ in range(tokens)]
        self._rest = stream

    def __iter__(self) -> Iterator[gateway_pb2.GenerateResponse]:
        return itertools.chain(self._first, self._rest)


class Streams:
    """Five streams, and where five tokens leave them. Each prompt has a length of its own."""

    count = 5

    def __init__(self, gateway: Any, after: int) -> None:
        self.plain = Heard(begin(gateway, "abcd", max_tokens=10, seed=5, logprobs=1, prompt_logprobs=0), after)
        self.unseeded = Heard(begin(gateway, "unseeded", max_tokens=8), after)
        # Three of the emoji's four bytes are there.
        self.character = Heard(begin(gateway, "ab😀STOP", max_tokens=100, stop=["STOP"]), after)
        # "ST" is held back.
        self.stop = Heard(begin(gateway, "abcSTOP", max_tokens=100, stop=["STOP"]), after)
        # a b END for the first, b END for the second, END for the third, in turns: only the first lacks its END.
        self.samples = Heard(begin(gateway, [64, 65, 256], n=3, max_tokens=10), after)


# A toy that is told to stop cuts its calls without a word.
@pytest.mark.parametrize(("after", "by"), [(0, signal.SIGKILL), (5, signal.SIGKILL), (5, signal.SIGTERM)])
def test_streams_go_on_where_their_worker_ended(
    start_worker: Any, start_gateway: Any, free_port: int, after: int, by: signal.Signals
) -> None:
    first = start_worker("--halt-after", str(after))
    second_address = f"127.0.0.1:{free_port}"
    gateway = start_gateway(f"{first.address},{second_address}", *PATIENT)
    gateway.wait_event("ready")
    streams = Streams(gateway, after)
    for _ in range(streams.count):
        first.wait_event("halted")
    first.signal(by)
    second = start_worker("--listen", second_address)

    plain = list(streams.plain)
    answer = answers(plain)[0]
    assert (answer.text, answer.tokens) == ("abcdabcdab", 10)
    usage = answer.last.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.migrations) == (4, 10, 1)
    assert 0 < usage.paused_seconds < usage.total_seconds
    # Of 4 prompt tokens the toy finds 2 in its cache.
    assert usage.cached_tokens == 2
    # Log-probabilities are one per token; those of the prompt's three last tokens came once.
    assert sum(len(response.logprobs) for response in plain) == 10
    assert sum(len(response.prompt_logprobs) for response in plain) == 3

    assert answers(streams.unseeded)[0].text == "unseeded"
    character, stop = answers(streams.character)[0], answers(streams.stop)[0]
    assert (character.text, character.tokens, character.last.stop_reason) == ("ab😀", 10, "STOP")
    assert (stop.text, stop.tokens, stop.last.stop_reason) == ("abc", 7, "STOP")
    samples = answers(streams.samples)
    assert [samples[index].tokens for index in range(3)] == [3, 2, 1]
    assert [samples[index].last.usage.migrations for index in range(3)] == ([1, 0, 0] if after else [1, 1, 1])

    # What the second worker was asked, by the prompt's length: to go on, unless nothing had come.
    asked = {
        request["prompt_tokens"]: request for request in (second.wait_event("request") for _ in range(streams.count))
    }
    resumed = {length: request["resumed"] for length, request in asked.items()}
    if not after:
        assert resumed == {4: {}, 8: {}, 10: {}, 7: {}, 3: {}}
        return
    # Finished samples are told without their last token, so that they end again at once.
    begun = {"0": after}
    assert resumed == {4: begun, 8: begun, 10: begun, 7: begun, 3: {"0": 2, "1": 1, "2": 0}}
    # The toy draws 4711 for a request without a seed.
    assert (asked[4]["resumed_seed"], asked[8]["resumed_seed"]) == (5, 4711)
    assert (asked[4]["max_tokens"], asked[4]["prompt_logprobs"]) == (10, False)


def test_answers_over_http_go_on_and_tell(start_worker: Any, start_gateway: Any) -> None:
    first = start_worker("--halt-after", "4")
    gateway = start_gateway(first.address, *PATIENT)
    url = f"http://{gateway.wait_event('ready')['http']}/v1/completions"
    body = json.dumps({"prompt": "abc", "max_tokens": 9}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: json.load(urllib.request.urlopen(request, timeout=120)))
        kill_when_halted(first)
        first.process.wait()
        start_worker("--listen", first.address)
        said = answer.result()
    assert said["choices"][0]["text"] == "abcabcabc"
    usage = said["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["migrations"]) == (3, 9, 1)
    assert usage["paused_seconds"] > 0


def test_samples_chosen_at_the_end_are_not_told_twice(start_worker: Any, start_gateway: Any) -> None:
    # Of 3 samples the 2 best: a worker that has begun to tell them cannot be followed by another.
    first = start_worker("--halt-after", "3")
    gateway = start_gateway(first.address)
    gateway.wait_event("ready")
    stream = Heard(begin(gateway, "abc", n=2, best_of=3, max_tokens=10), 3)
    kill_when_halted(first)
    error = failure(stream)
    info = error_info_of(error)
    assert info is not None
    assert (error.code(), info.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_RESUMABLE")


def test_a_worker_that_leaves_is_no_loss(two: Any) -> None:
    # More departures than a request may lose workers: each worker brings two tokens and leaves.
    leaving = ("--leave-after", "2")
    _, _, gateway = two(leaving, ("--max-worker-losses", "0", *PATIENT), leaving)
    answer = answers(begin(gateway, "abc", max_tokens=6))[0]
    assert (answer.text, answer.last.usage.migrations) == ("abcabc", 2)
    paused = [gateway.wait_for(lambda event: event.get("message", "").startswith("a request pauses")) for _ in range(2)]
    assert [event["cause"] for event in paused] == ["drained", "drained"]


def test_a_request_that_kills_its_workers_is_given_up(start_worker: Any, start_gateway: Any) -> None:
    # It may lose one worker; the second one lost is one too many, and the third never sees it.
    workers = [start_worker() for _ in range(3)]
    gateway = start_gateway(",".join(worker.address for worker in workers), "--max-worker-losses", "1")
    for _ in workers:
        gateway.wait_for(lambda event: "is ready" in str(event.get("message")))
    error = failure(begin(gateway, "DIE!", max_tokens=9))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "has lost 2 workers, and may be why" in error.details()
    info = error_info_of(error)
    assert info is not None
    assert info.reason == "WORKER_LOST"
    assert answers(begin(gateway, "abc", max_tokens=3))[0].text == "abc"
    assert sum(worker.process.poll() is None for worker in workers) == 1


def test_a_worker_that_comes_back_takes_its_own_streams(start_worker: Any, start_gateway: Any) -> None:
    first = start_worker("--halt-after", "4")
    gateway = start_gateway(first.address, *PATIENT)
    gateway.wait_event("ready")
    stream = begin(gateway, "abc", max_tokens=9)
    kill_when_halted(first)
    first.process.wait()
    start_worker("--listen", first.address)
    answer = answers(stream)[0]
    assert (answer.text, answer.last.usage.migrations) == ("abcabcabc", 1)


@pytest.mark.parametrize("second", [None, "other"])
def test_without_another_worker_of_the_model_the_stream_ends_honestly(
    start_worker: Any, start_gateway: Any, second: str | None
) -> None:
    workers = [start_worker("--halt-after", "3")]
    if second is not None:
        workers.append(start_worker("--fingerprint", second))
    gateway = start_gateway(",".join(worker.address for worker in workers), "--migration-wait-seconds", "0.3")
    for _ in workers:
        gateway.wait_for(lambda event: "is ready" in str(event.get("message")))
    stream = Heard(begin(gateway, "abc", max_tokens=9), 3)
    kill_when_halted(workers[0])
    error = failure(stream)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "failed after 3 tokens" in error.details()
    assert "no other worker of its model came within 0.3 s" in error.details()
    info = error_info_of(error)
    assert info is not None
    assert info.reason == "WORKER_LOST"


def test_the_deadline_ends_the_pause(start_worker: Any, start_gateway: Any) -> None:
    first = start_worker("--halt-after", "3")
    gateway = start_gateway(first.address, "--migration-wait-seconds", "60")
    gateway.wait_event("ready")
    stream = begin(gateway, "abc", max_tokens=9, timeout=10.0)
    kill_when_halted(first)
    assert failure(stream).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    gateway.wait_for(lambda event: event.get("message") == "generation ended: not finished")


def pauses(page: str) -> dict[str, float]:
    """What the metrics page says of pauses, zeros left out."""
    with urllib.request.urlopen(page, timeout=60) as response:
        lines = [line.split() for line in response.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines if "_pauses" in name and "_total" in name and float(value)}


def test_a_client_may_leave_during_the_pause(start_worker: Any, start_gateway: Any) -> None:
    first = start_worker("--halt-after", "3")
    gateway = start_gateway(first.address, "--migration-wait-seconds", "60")
    page = f"http://{gateway.wait_event('ready')['http']}/metrics"
    stream = begin(gateway, "abc", max_tokens=9)
    kill_when_halted(first)
    gateway.wait_for(lambda event: event.get("message", "").startswith("a request pauses"))
    stream.cancel()
    gateway.wait_for(lambda event: event.get("message") == "generation ended: not finished")
    assert pauses(page) == {
        'octavo_gateway_pauses_total{cause="lost"}': 1.0,
        'octavo_gateway_pauses_ended_total{outcome="cancelled"}': 1.0,
    }
    # Nobody goes on for it.
    again = start_worker("--listen", first.address)
    gateway.wait_for(lambda event: "is ready" in str(event.get("message")))
    assert answers(begin(gateway, "xyz", max_tokens=3))[0].text == "xyz"
    again.end()
    assert [event["prompt_tokens"] for event in again.all_events("request")] == [3]


def test_streams_leave_a_frozen_worker(two: Any) -> None:
    # A look each second, and two looks of 2 s without an answer: frozen after at most 5 s.
    first, _, gateway = two(("--halt-after", "3"))
    stream = begin(gateway, "abc", max_tokens=9)
    first.wait_event("halted")
    first.signal(signal.SIGSTOP)
    answer = answers(stream)[0]
    assert (answer.text, answer.last.usage.migrations) == ("abcabcabc", 1)
    paused = gateway.wait_for(lambda event: event.get("message", "").startswith("a request pauses"))
    assert paused["cause"] == "frozen"
    first.signal(signal.SIGCONT)
    assert first.wait_event("ended")["how"] == "cancelled"


def test_what_is_the_requests_own_fault_never_moves(two: Any) -> None:
    first, second, gateway = two(())
    for prompt, code in (("FULL", grpc.StatusCode.RESOURCE_EXHAUSTED), ("BREAK", grpc.StatusCode.INTERNAL)):
        assert failure(begin(gateway, prompt, max_tokens=9)).code() is code
    for worker in (first, second):
        worker.end()
    assert len(first.all_events("request") + second.all_events("request")) == 2
