"""A real gateway process whose toy workers die, leave or freeze at a token the test names, with a stream under way.

The toy answers a prompt with the prompt, repeated, one byte per token, and takes no resume that begins otherwise. A
worker that halts after n tokens is killed there, so each test knows which token comes from where. The first worker
listed gets the first request.
"""

import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import pytest

from octavo.gateway.v1 import gateway_pb2
from service.errors import error_info_of

pytestmark = pytest.mark.e2e


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


def begin(gateway: Any, prompt: str | list[int], timeout: float = 30, **options: Any) -> Any:
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


@pytest.mark.parametrize("after", [0, 5])
def test_a_stream_goes_on_where_its_worker_died(two: Any, after: int) -> None:
    first, second, gateway = two(("--halt-after", str(after)))
    stream = begin(gateway, "abc", max_tokens=10, seed=5, logprobs=1, prompt_logprobs=0)
    kill_when_halted(first)
    responses = list(stream)
    answer = answers(responses)[0]
    assert (answer.text, answer.tokens) == ("abcabcabca", 10)
    usage = answer.last.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.migrations) == (3, 10, 1)
    assert 0 < usage.paused_seconds < usage.total_seconds
    # Of 3 prompt tokens the toy finds 1 in its cache. The second worker is asked to go on, unless nothing had come.
    assert usage.cached_tokens == 1
    request = second.wait_event("request")
    assert request["resumed"] == ({"0": after} if after else {})
    assert request["resumed_seed"] == (5 if after else 0)
    assert request["max_tokens"] == 10
    # Log-probabilities are one per token; those of the prompt's two last tokens came once.
    assert sum(len(response.logprobs) for response in responses) == 10
    assert sum(len(response.prompt_logprobs) for response in responses) == 2
    assert request["prompt_logprobs"] is (after == 0)


def test_an_unseeded_request_goes_on_with_the_seed_its_worker_drew(two: Any) -> None:
    first, second, gateway = two(("--halt-after", "2"))
    stream = begin(gateway, "abc", max_tokens=4)
    kill_when_halted(first)
    assert answers(stream)[0].text == "abca"
    # What the toy draws when nobody says.
    assert second.wait_event("request")["resumed_seed"] == 4711


@pytest.mark.parametrize("after", [3, 7])
def test_characters_and_stop_strings_may_be_cut_anywhere(two: Any, after: int) -> None:
    # "x😀STOP" is 1 + 4 + 4 tokens: the emoji is whole after 5, and "ST" is held back after 7.
    first, second, gateway = two(("--halt-after", str(after)))
    stream = begin(gateway, "x😀STOP", max_tokens=100, stop=["STOP"])
    kill_when_halted(first)
    answer = answers(stream)[0]
    assert (answer.text, answer.tokens, answer.last.stop_reason) == ("x😀", 9, "STOP")
    assert answer.last.usage.migrations == 1
    assert second.wait_event("request")["resumed"] == {"0": after}


def test_of_two_samples_the_finished_one_stays_finished(two: Any) -> None:
    # Prompt a b END. Sample 0 says a b END; sample 1 begins one token later: b END. After 4 tokens it is whole.
    first, second, gateway = two(("--halt-after", "4"))
    end = 256
    stream = begin(gateway, [64, 65, end], n=2, max_tokens=10)
    kill_when_halted(first)
    both = answers(stream)
    assert (both[0].tokens, both[1].tokens) == (3, 2)
    assert (both[0].last.usage.migrations, both[1].last.usage.migrations) == (1, 0)
    # So that it ends again at once, the finished one is told without its last token.
    assert second.wait_event("request")["resumed"] == {"0": 2, "1": 1}
    assert second.wait_event("ended")["how"] == "finished"


def test_a_worker_that_leaves_is_no_loss(two: Any) -> None:
    # More departures than a request may lose workers: each worker brings two tokens and leaves.
    leaving = ("--leave-after", "2")
    _, _, gateway = two(leaving, ("--max-worker-losses", "0", "--migration-wait-seconds", "30"), leaving)
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
    assert (info.reason, info.metadata["tokens"]) == ("WORKER_LOST", "2")
    assert answers(begin(gateway, "abc", max_tokens=3))[0].text == "abc"
    assert sum(worker.process.poll() is None for worker in workers) == 1


def test_a_worker_that_comes_back_takes_its_own_streams(start_worker: Any, start_gateway: Any) -> None:
    first = start_worker("--halt-after", "4")
    gateway = start_gateway(first.address)
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
    stream = begin(gateway, "abc", max_tokens=9)
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
    stream = begin(gateway, "abc", max_tokens=9, timeout=1.0)
    kill_when_halted(first)
    assert failure(stream).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    gateway.wait_for(lambda event: event.get("message") == "generation ended: not finished")


def test_a_client_may_leave_during_the_pause(start_worker: Any, start_gateway: Any) -> None:
    first = start_worker("--halt-after", "3")
    gateway = start_gateway(first.address, "--migration-wait-seconds", "60")
    gateway.wait_event("ready")
    stream = begin(gateway, "abc", max_tokens=9)
    kill_when_halted(first)
    gateway.wait_for(lambda event: event.get("message", "").startswith("a request pauses"))
    stream.cancel()
    gateway.wait_for(lambda event: event.get("message") == "generation ended: not finished")
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
