"""What clients that no one here wrote get from real services, the same for all of them.

The model writes the successor of the last token (`successor_model`), so every text is arithmetic:

    chat of "hello"         <|turn|> user:hello <|turn|> assistant:    1 + 10 + 1 + 10 = 22 tokens, then "abcdefgh"
    completion of "a"       1 token, then "bcdefghi"
    completion of a fox     4 tokens, then foxes of 4 tokens each: 12 tokens are 3
    204,800 equal signs     64 to a token: 3,200 tokens, then "abcdefgh"
"""

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from processes import Stack

from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import open_channel

HTTP = ["openai-python", "openai-node", "litellm", "langchain-openai"]
GRPC = ["grpc-js", "grpclib", "reflection"]
# Their environments take half a minute and 500 MB; the others' are made in CI.
LARGE = {"litellm", "langchain-openai"}

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ERRORS = {
    "unknown_model": {
        "openai-python": {"error": "NotFoundError", "status": 404, "code": "model_not_found"},
        "openai-node": {"error": "NotFoundError", "status": 404, "code": "model_not_found"},
        "litellm": {"error": "NotFoundError", "status": 404},
        "langchain-openai": {"error": "OpenAIModelNotFoundError", "status": 404, "code": "model_not_found"},
    },
    "bad_parameter": {
        "openai-python": {"error": "BadRequestError", "status": 400, "param": "temperature"},
        "openai-node": {"error": "BadRequestError", "status": 400, "param": "temperature"},
        "litellm": {"error": "BadRequestError", "status": 400},
        "langchain-openai": {"error": "OpenAIInvalidRequestError", "status": 400, "param": "temperature"},
    },
    "too_long": {
        "openai-python": {"error": "BadRequestError", "status": 400, "code": "context_length_exceeded"},
        "openai-node": {"error": "BadRequestError", "status": 400, "code": "context_length_exceeded"},
        "litellm": {"error": "ContextWindowExceededError", "status": 400},
        "langchain-openai": {"error": "OpenAIContextOverflowError", "status": 400, "code": "context_length_exceeded"},
    },
}
GRPC_ERRORS = {
    "unknown_model": ("NOT_FOUND", "successor"),
    "bad_parameter": ("INVALID_ARGUMENT", "options.temperature"),
    "too_long": ("INVALID_ARGUMENT", "prompt"),
}
GONE_SECONDS = 60.0

Facts = Callable[[str], Any]


def clients(*names: str) -> Any:
    marked = [pytest.param(name, marks=pytest.mark.clients if name in LARGE else ()) for name in names]
    return pytest.mark.parametrize("client", marked)


@pytest.fixture
def facts(client: str, program: Any) -> Facts:
    """What the client's program finds."""
    found: Facts = program(client).facts
    return found


@clients(*[name for name in HTTP if name != "langchain-openai"], *GRPC)
def test_models_are_listed(facts: Facts) -> None:
    assert facts("models") == ["successor"]


@clients(*HTTP, *GRPC)
def test_a_chat_and_a_completion_are_whole(facts: Facts) -> None:
    assert facts("chat") == {"text": "abcdefgh", "finish_reason": "length", "usage": [22, 8]}
    assert facts("completion") == {"text": "bcdefghi", "finish_reason": "length", "usage": [1, 8]}


@clients(*HTTP, *GRPC)
def test_a_stream_comes_in_pieces_and_ends_with_its_usage(facts: Facts) -> None:
    streamed = facts("stream")
    assert "".join(streamed["pieces"]) == "abcdefgh"
    assert len(streamed["pieces"]) > 1
    assert (streamed["finish_reason"], streamed["usage"]) == ("length", [22, 8])


@clients(*HTTP, *GRPC)
def test_two_answers_differ_and_begin_where_one_did(facts: Facts) -> None:
    texts = facts("two")["texts"]
    assert len(texts) == 2
    assert texts[0] != texts[1]
    # A draw depends on seed, answer and position alone, so the first of two is the one answer of the same seed.
    assert texts[0] == facts("seeds")[0]


@clients(*HTTP, *GRPC)
def test_a_stop_string_ends_the_text_before_it(facts: Facts) -> None:
    assert facts("stop") == {"text": "abcde", "finish_reason": "stop"}


@clients(*HTTP, *GRPC)
def test_a_seed_repeats_and_another_does_not(facts: Facts) -> None:
    first, again, other = facts("seeds")
    assert first == again
    assert first != other


@clients(*HTTP, *GRPC)
def test_log_probabilities_are_those_of_the_model(facts: Facts) -> None:
    entries = facts("logprobs")
    assert "".join(text for text, _, _ in entries) == "abcdefgh"
    # The successor's logit is 10, those of the other 263 tokens are 0: 256 bytes, 6 runs, 2 special tokens.
    expected = 10 - math.log(math.exp(10) + 263)
    assert [count for _, _, count in entries] == [2] * 8
    for _, logprob, _ in entries:
        assert logprob == pytest.approx(expected, abs=1e-3)


@clients(*HTTP, *GRPC)
def test_characters_of_several_tokens_come_whole(facts: Facts) -> None:
    pieces = facts("unicode")
    assert "".join(pieces) == "🦊🦊🦊"
    assert all(set(piece) == {"🦊"} for piece in pieces)


@clients(*HTTP, *GRPC)
def test_a_prompt_of_200_kilobytes_is_taken(facts: Facts) -> None:
    assert facts("large") == {"text": "abcdefgh", "finish_reason": "length", "usage": [3_200, 8]}


@clients(*HTTP)
@pytest.mark.parametrize("wrong", list(ERRORS))
def test_errors_are_of_the_clients_own_class(facts: Facts, client: str, wrong: str) -> None:
    found = facts(wrong)
    expected = ERRORS[wrong][client]
    assert {name: found.get(name) for name in expected} == expected


@clients(*GRPC)
@pytest.mark.parametrize("wrong", list(GRPC_ERRORS))
def test_errors_have_their_canonical_code_and_name_the_field(facts: Facts, wrong: str) -> None:
    found = facts(wrong)
    code, named = GRPC_ERRORS[wrong]
    assert found["code"] == code
    assert named in found["message"]


@clients(*HTTP, *GRPC)
def test_who_leaves_in_the_middle_stops_the_worker(facts: Facts, stack: Stack) -> None:
    with open_channel(stack.worker.address) as worker_channel, open_channel(stack.manager.address) as manager_channel:
        worker = worker_pb2_grpc.WorkerServiceStub(worker_channel)
        manager = kv_manager_pb2_grpc.KvManagerServiceStub(manager_channel)

        def stats() -> worker_pb2.GetStatsResponse:
            return worker.GetStats(worker_pb2.GetStatsRequest(), timeout=60, wait_for_ready=True)

        def held() -> int:
            pool = manager.InspectPool(
                inspect_pb2.InspectPoolRequest(pool="default"), timeout=60, wait_for_ready=True
            ).summary.stats
            return int(pool.num_blocks - pool.free_blocks - pool.cached_blocks)

        before = stats()
        pieces = facts("leave")
        left = time.monotonic()
        assert "".join(pieces) == "abcdefghijklmnopqrstuvwxyz "[: len("".join(pieces))]
        while (now := stats()).running_requests or held():
            assert time.monotonic() - left < GONE_SECONDS, now
        assert now.aborted_in_decode == before.aborted_in_decode + 1
        assert now.generated_tokens - before.generated_tokens < 15_000 / 2
