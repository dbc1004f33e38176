"""Reasoning in a sample's pieces: tokens that are counted, ends of every kind, calls, other workers, both shapes."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from byte_vocabulary import byte_level

from gateway.continuation import Continuation
from gateway.http.shapes import ChatShape, Chunks, Head, Part, whole_of
from gateway.logprobs import LogprobReader
from gateway.messages import chat_response
from gateway.reasoning.marks import FAMILIES
from gateway.reasoning.reader import ReasoningReader
from gateway.reasoning.splitter import Phase, ReasoningSplitter
from gateway.streams import FinishReason, Piece, SampleStream
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopAutomaton, StopScanner
from gateway.text.tokenizer import Tokenizer
from gateway.tools.families import FAMILIES as TOOL_FAMILIES
from gateway.tools.reader import CallCollector, CallReader
from octavo.gateway.v1 import gateway_pb2
from octavo.worker.v1 import sampling_pb2, worker_pb2

pytestmark = pytest.mark.unit

OPEN, CLOSE = FAMILIES["mistral"]
END = "</s>"
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
HEAD = Head("id", 1, "m", "fp")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes, and marks that are special tokens: a letter is a token, and so is a mark."""
    backend = byte_level([OPEN, CLOSE, END])
    return Tokenizer({"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": b"{}"})


def new_stream(
    tokenizer: Tokenizer, start: Phase = Phase.OPENS, *, stops: Sequence[str] = (), told: bool = True, index: int = 0
) -> SampleStream:
    shown = frozenset(id_ for mark in (OPEN, CLOSE) if (id_ := tokenizer.id_of(mark)) is not None)
    assert len(shown) == 2
    return SampleStream(
        index,
        7,
        Detokenizer(tokenizer, shown=shown),
        StopScanner(StopAutomaton(stops)) if stops else None,
        LogprobReader(tokenizer, tokenizer.special_ids - shown),
        CallReader(TOOL_FAMILIES["hermes"].parser({"f"}), lambda: "id"),
        ReasoningReader(ReasoningSplitter(FAMILIES["mistral"], start), told=told),
    )


def messages_of(tokenizer: Tokenizer, text: str, *, ended: bool = True) -> list[worker_pb2.GenerateResponse]:
    """A message per token; the last one ends the sample, by the end token or by the length."""
    messages = [worker_pb2.GenerateResponse(token_ids=[id_]) for id_ in tokenizer.encode(text + END * ended)]
    reason = sampling_pb2.FINISH_REASON_STOP if ended else sampling_pb2.FINISH_REASON_LENGTH
    messages[-1].finished.reason = reason
    if ended:
        messages[-1].finished.stop_token_id = messages[-1].token_ids[0]
    return messages


def sample(tokenizer: Tokenizer, text: str, start: Phase = Phase.OPENS, **given: Any) -> list[Piece]:
    ended = given.pop("ended", True)
    stream = new_stream(tokenizer, start, **given)
    pieces = [stream.push(message, 1.0) for message in messages_of(tokenizer, text, ended=ended)]
    return [piece for piece in pieces if piece is not None]


def told(pieces: Sequence[Piece]) -> tuple[str, str, FinishReason, int]:
    """Reasoning, content, end, and how many tokens reasoned."""
    finish = pieces[-1].finish
    assert finish is not None
    reasoning, text = "".join(piece.reasoning for piece in pieces), "".join(piece.text for piece in pieces)
    return reasoning, text, finish.reason, finish.usage.reasoning_tokens


def test_tokens_up_to_the_closing_mark_are_counted(tokenizer: Tokenizer) -> None:
    # OPEN a b CLOSE: 4 tokens. Then \n \n c and the end.
    pieces = sample(tokenizer, f"{OPEN}ab{CLOSE}\n\nc")
    assert told(pieces) == ("ab", "c", FinishReason.STOP, 4)
    assert pieces[-1].finish is not None
    assert pieces[-1].finish.usage.completion_tokens == 8
    # White space before the mark belongs to it, and what follows a prompt's mark begins inside.
    assert told(sample(tokenizer, f"\n{OPEN}ab\n{CLOSE}c")) == ("ab", "c", FinishReason.STOP, 6)
    assert told(sample(tokenizer, f"ab{CLOSE}c", Phase.BEGINS)) == ("ab", "c", FinishReason.STOP, 3)
    assert told(sample(tokenizer, "c", Phase.ENDS)) == ("", "c", FinishReason.STOP, 0)
    assert told(sample(tokenizer, "c")) == ("", "c", FinishReason.STOP, 0)
    assert told(sample(tokenizer, f"{OPEN}ab{CLOSE}c", told=False)) == ("", "c", FinishReason.STOP, 4)


def test_max_tokens_may_leave_reasoning_alone(tokenizer: Tokenizer) -> None:
    pieces = sample(tokenizer, f"{OPEN}ab ", ended=False)
    assert told(pieces) == ("ab", "", FinishReason.LENGTH, 4)
    (choice,) = whole_of(ChatShape(), HEAD, [Part(0, 0, piece) for piece in pieces])["choices"]
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "ab"}
    assert choice["finish_reason"] == "length"
    # The model may end there too.
    assert told(sample(tokenizer, f"{OPEN}ab")) == ("ab", "", FinishReason.STOP, 4)


def test_stop_strings_are_for_the_content(tokenizer: Tokenizer) -> None:
    """Who asks for a stop does not see the reasoning, in which it would end the answer before it begins."""
    assert told(sample(tokenizer, f"{OPEN}ab{CLOSE}cbd", stops=["b"])) == ("ab", "c", FinishReason.STOP, 4)
    pieces = sample(tokenizer, f"{OPEN}ab{CLOSE}cbd", stops=["b"])
    assert pieces[-1].finish is not None
    assert (pieces[-1].finish.stop_reason, pieces[-1].finish.usage.completion_tokens) == ("b", 6)
    # Neither do they reach across the mark.
    assert told(sample(tokenizer, f"{OPEN}a{CLOSE}b", stops=["ab", f"a{CLOSE}b"]))[1] == "b"
    # What may begin one is held back, and comes at the end.
    assert told(sample(tokenizer, f"{OPEN}a{CLOSE}cb", stops=["bd"]))[1] == "cb"


def test_calls_are_read_behind_reasoning_and_not_within(tokenizer: Tokenizer) -> None:
    pieces = sample(tokenizer, f"{OPEN}I write {CALL} now.{CLOSE}\n\n{CALL}")
    reasoning, text, reason, _ = told(pieces)
    assert (reasoning, text, reason) == (f"I write {CALL} now.", "", FinishReason.TOOL_CALLS)
    (call,) = CallCollector().add(call for piece in pieces for call in piece.calls)
    assert (call.name, call.arguments) == ("f", "{}")
    reasoning, text, reason, _ = told(sample(tokenizer, f"{OPEN}{CALL}{CLOSE}No."))
    assert (reasoning, text, reason) == (CALL, "No.", FinishReason.STOP)


@pytest.mark.parametrize("cut", range(1, 9))
def test_reasoning_goes_on_on_another_worker(tokenizer: Tokenizer, cut: int) -> None:
    """Wherever the first worker is lost, within the mark's white space too; nothing comes twice."""
    messages = messages_of(tokenizer, f"{OPEN}ab\n{CLOSE}\ncd")
    messages[0].started.seed = 7
    state = Continuation(worker_pb2.GenerateRequest(), [new_stream(tokenizer)])
    pieces = [state.push(message, 1.0) for message in messages[:cut]]
    resumed = state.request().resume
    assert list(resumed.samples[0].token_ids) == [message.token_ids[0] for message in messages[:cut]]
    pieces += [state.push(message, 2.0) for message in messages[cut:]]
    # OPEN a b \n CLOSE
    assert told([piece for piece in pieces if piece is not None]) == ("ab", "cd", FinishReason.STOP, 5)


def test_chunks_add_up_to_the_message_and_answers_do_not_mix(tokenizer: Tokenizer) -> None:
    streams = [new_stream(tokenizer, index=index) for index in (0, 1)]
    texts = (f"{OPEN}ab{CLOSE}cd", f"ef{CALL}")
    parts: list[Part] = []
    for turn in itertools.zip_longest(*(messages_of(tokenizer, text) for text in texts)):
        for stream, message in zip(streams, turn, strict=True):
            if message is not None and (piece := stream.push(message, 1.0)) is not None:
                parts.append(Part(0, stream.index, piece))
    chunks = Chunks(ChatShape(), HEAD)
    deltas: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for part in parts:
        if (chunk := chunks.of(part)) is not None:
            deltas[part.choice].append(chunk["choices"][0]["delta"])
    assert deltas[0] == [
        {"role": "assistant", "content": None, "reasoning_content": "a"}, {"reasoning_content": "b"},
        {"content": "c"}, {"content": "d"}, {},
    ]  # fmt: skip
    assert deltas[1][0] == {"role": "assistant", "content": "e"}
    assert not any("reasoning_content" in delta for delta in deltas[1])
    answer = whole_of(ChatShape(), HEAD, parts)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["cd", "ef"]
    assert [choice["message"].get("reasoning_content") for choice in answer["choices"]] == ["ab", None]
    # OPEN a b CLOSE of the first one.
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert chunks.usage()["usage"] == answer["usage"]
    (first, _) = whole_of(ChatShape(("reasoning_content", "reasoning")), HEAD, parts)["choices"]
    assert first["message"]["reasoning"] == first["message"]["reasoning_content"] == "ab"


def test_grpc_tells_the_same(tokenizer: Tokenizer) -> None:
    pieces = sample(tokenizer, f"{OPEN}ab{CLOSE}c")
    responses = [chat_response(gateway_pb2.ResponseHeader(), piece, role="", calls=()) for piece in pieces]
    assert "".join(response.reasoning for response in responses) == "ab"
    assert "".join(response.content for response in responses) == "c"
    assert responses[-1].usage.reasoning_tokens == 4
