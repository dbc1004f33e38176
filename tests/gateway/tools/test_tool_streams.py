"""Calls in a sample's pieces: marks that are special tokens, stop strings, ends of every kind, and their shapes."""

from collections.abc import Sequence

import pytest
from byte_vocabulary import byte_level

from gateway.continuation import Continuation
from gateway.http.call_shapes import call_deltas, whole_call
from gateway.http.shapes import ChatShape, Chunks, Head, Part, whole_of
from gateway.logprobs import LogprobReader
from gateway.streams import Finish, FinishReason, Piece, SampleStream, Usage
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopAutomaton, StopScanner
from gateway.text.tokenizer import Tokenizer
from gateway.tools.families import FAMILIES
from gateway.tools.reader import CallCollector, CallPiece, CallReader, WholeCall
from octavo.worker.v1 import sampling_pb2, worker_pb2

pytestmark = pytest.mark.unit

MARK, END, OTHER = "[TOOL_CALLS]", "</s>", "<|other|>"
CALL = '[{"name": "f", "arguments": {"a": 1}}]'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes and three special tokens."""
    backend = byte_level([MARK, END, OTHER])
    return Tokenizer({"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": b"{}"})


def new_stream(tokenizer: Tokenizer, stops: Sequence[str] = (), most: int | None = None) -> SampleStream:
    """A sample whose mark is shown, as no other special token is."""
    mark = tokenizer.id_of(MARK)
    assert mark is not None
    shown = frozenset({mark})
    return SampleStream(
        0,
        7,
        Detokenizer(tokenizer, shown=shown),
        StopScanner(StopAutomaton(stops)),
        LogprobReader(tokenizer, tokenizer.special_ids - shown),
        CallReader(FAMILIES["mistral"].parser({"f"}), lambda: "id", most),
    )


def sample(
    tokenizer: Tokenizer, text: str, *, stops: Sequence[str] = (), most: int | None = None, ended: bool = True
) -> list[Piece]:
    """The pieces of a text's tokens, one by one; the last one ends it, by its end token or by the length."""
    stream = new_stream(tokenizer, stops, most)
    ids = tokenizer.encode(text)
    reason = sampling_pb2.FINISH_REASON_STOP if ended else sampling_pb2.FINISH_REASON_LENGTH
    pieces = []
    for id_ in ids[:-1]:
        pieces.append(stream.push(worker_pb2.GenerateResponse(token_ids=[id_]), 1.0))
    finished = worker_pb2.Finished(reason=reason, stop_token_id=tokenizer.id_of(END) if ended else None)
    pieces.append(stream.push(worker_pb2.GenerateResponse(token_ids=ids[-1:], finished=finished), 1.0))
    return [piece for piece in pieces if piece is not None]


def told(pieces: Sequence[Piece]) -> tuple[str, list[WholeCall], FinishReason]:
    finish = pieces[-1].finish
    assert finish is not None
    text = "".join(piece.text for piece in pieces)
    return text, CallCollector().add(call for piece in pieces for call in piece.calls), finish.reason


F = WholeCall("id", "f", '{"a": 1}')


def test_a_mark_is_seen_where_other_special_tokens_are_not(tokenizer: Tokenizer) -> None:
    pieces = sample(tokenizer, f"So{OTHER}: {MARK}{CALL}{END}")
    assert told(pieces) == ("So: ", [F], FinishReason.TOOL_CALLS)
    # As text it is not lost either.
    assert told(sample(tokenizer, f"{MARK}?{OTHER}{END}")) == (f"{MARK}?", [], FinishReason.STOP)


def test_every_end_is_told(tokenizer: Tokenizer) -> None:
    whole = f"{MARK}{CALL}{END}"
    assert told(sample(tokenizer, whole, stops=["1"])) == (
        f'{MARK}[{{"name": "f", "arguments": {{"a": ', [], FinishReason.STOP,
    )  # fmt: skip
    assert told(sample(tokenizer, f"{MARK}{CALL} so", stops=[" so"])) == ("", [F], FinishReason.TOOL_CALLS)
    assert told(sample(tokenizer, f"{MARK}{CALL}", ended=False)) == ("", [F], FinishReason.LENGTH)
    assert told(sample(tokenizer, f"{MARK}{CALL[:-3]}", ended=False)) == (MARK + CALL[:-3], [], FinishReason.LENGTH)
    pieces = sample(tokenizer, f"{MARK}{CALL}{MARK}{CALL}{END}", most=1)
    assert told(pieces) == ("", [F], FinishReason.TOOL_CALLS)
    assert pieces[-1].finish is not None
    # It ended with the object's last brace: one token for the mark, and a byte each before the closing bracket.
    assert pieces[-1].finish.usage.completion_tokens == len(CALL)
    assert len(told(sample(tokenizer, f"{MARK}{CALL}{MARK}{CALL}{END}"))[1]) == 2


BEGUN = CallPiece(0, id="c1", name="f")
FINISH = Finish(FinishReason.TOOL_CALLS, "", Usage(3, 4))


def test_shapes_of_calls() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert whole_call(WholeCall("c1", "f", '{"a": 1}')) == {"id": "c1", "type": "function", "function": function}
    # What one chunk brings of a call is one entry, with id and name where they are new.
    assert call_deltas([BEGUN, CallPiece(0, arguments='{"a'), CallPiece(1, id="c2", name="g")]) == [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a'}},
        {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]
    assert call_deltas([CallPiece(0, arguments="1"), CallPiece(0, arguments="}"), CallPiece(0, complete=True)]) == [
        {"index": 0, "function": {"arguments": "1}"}}
    ]


def test_chunks_and_messages_with_calls() -> None:
    parts = [
        Part(0, 0, Piece(0, "", (1,), calls=(BEGUN,))),
        Part(0, 0, Piece(0, "", (2,), calls=(CallPiece(0, arguments="{}"),))),
        Part(0, 0, Piece(0, "", (3,), calls=(CallPiece(0, complete=True),))),
        Part(0, 0, Piece(0, "", (4,), FINISH)),
    ]
    head = Head("id", 1, "m", "fp")
    chunks = Chunks(ChatShape(), head)
    choices = [chunk["choices"][0] for part in parts if (chunk := chunks.of(part)) is not None]
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": None, "tool_calls": [first]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert choices[-1]["finish_reason"] == "tool_calls"
    (choice,) = whole_of(ChatShape(), head, parts)["choices"]
    assert choice["message"]["content"] is None
    assert [one["function"]["arguments"] for one in choice["message"]["tool_calls"]] == ["{}"]

    # A call that broke is no call of the message, and its text is the message's.
    broken = [parts[0], Part(0, 0, Piece(0, "<tool_call>", (2,), FINISH, calls=(CallPiece(0, complete=False),)))]
    (choice,) = whole_of(ChatShape(), head, broken)["choices"]
    assert choice["message"] == {"role": "assistant", "content": "<tool_call>", "refusal": None}


@pytest.mark.parametrize("cut", [1, 2, 20, len(CALL), len(CALL) + 1])
def test_a_call_goes_on_on_another_worker(tokenizer: Tokenizer, cut: int) -> None:
    """B54: what comes after a worker is lost goes on where it was, within a call too; nothing comes twice."""
    (ids, end) = tokenizer.encode(MARK + CALL), tokenizer.id_of(END)
    grammar = sampling_pb2.Grammar(lark="start: calls")
    request = worker_pb2.GenerateRequest(sampling=sampling_pb2.SamplingParams(grammar=grammar))
    stream = new_stream(tokenizer)
    state = Continuation(request, [stream])
    first = [worker_pb2.GenerateResponse(token_ids=[id_]) for id_ in ids[:cut]]
    first[0].started.seed = 7
    pieces = [state.push(message, 1.0) for message in first]
    again = state.request()
    assert (again.resume.seed, list(again.resume.samples[0].token_ids)) == (7, ids[:cut])
    assert again.sampling.grammar == grammar
    finished = worker_pb2.Finished(reason=sampling_pb2.FINISH_REASON_STOP, stop_token_id=end)
    rest = [worker_pb2.GenerateResponse(token_ids=[id_]) for id_ in ids[cut:]]
    pieces += [state.push(one, 2.0) for one in (*rest, worker_pb2.GenerateResponse(token_ids=[end], finished=finished))]
    assert told([piece for piece in pieces if piece is not None]) == ("", [F], FinishReason.TOOL_CALLS)
