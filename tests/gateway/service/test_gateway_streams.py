"""Pieces from scripted worker messages: no network, no clock. Token id = byte's place in the byte-level alphabet."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.logprobs import LogprobReader, TokenLogprob
from gateway.streams import FinishReason, Piece, SampleStream
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopAutomaton, StopScanner
from gateway.text.tokenizer import Tokenizer
from octavo.worker.v1 import sampling_pb2, worker_pb2

END_ID = 256


@pytest.fixture
def stream(toy_tokenizer: Tokenizer) -> SampleStream:
    return new_stream(toy_tokenizer)


def new_stream(tokenizer: Tokenizer, stops: Sequence[str] = ()) -> SampleStream:
    reader = LogprobReader(tokenizer, tokenizer.special_ids)
    return SampleStream(0, 7, Detokenizer(tokenizer), StopScanner(StopAutomaton(stops)), reader)


def tokens(ids: Sequence[int]) -> worker_pb2.GenerateResponse:
    return worker_pb2.GenerateResponse(token_ids=ids)


def told(ids: Sequence[int]) -> list[sampling_pb2.TokenLogprobs]:
    """Log-probabilities by id, with the id and the next one as the most likely."""
    return [
        sampling_pb2.TokenLogprobs(
            token_id=id_,
            logprob=-id_,
            top=[sampling_pb2.TokenLogprob(token_id=one, logprob=-one) for one in (id_, id_ + 1)],
        )
        for id_ in ids
    ]


def last(
    ids: Sequence[int], reason: "sampling_pb2.FinishReason", stop_token_id: int | None = None
) -> worker_pb2.GenerateResponse:
    stats = worker_pb2.RequestStats(cached_tokens=4, recomputes=2, swaps=1, prefill_chunks=3, max_batch=5)
    finished = worker_pb2.Finished(reason=reason, stop_token_id=stop_token_id, stats=stats)
    return worker_pb2.GenerateResponse(token_ids=ids, finished=finished)


def run(stream: SampleStream, messages: Sequence[worker_pb2.GenerateResponse]) -> list[Piece]:
    return [piece for at, message in enumerate(messages) if (piece := stream.push(message, float(at + 1))) is not None]


@pytest.mark.unit
def test_the_last_piece_carries_what_the_worker_told(toy_tokenizer: Tokenizer, stream: SampleStream) -> None:
    a, b = toy_tokenizer.encode("ab")
    pieces = run(stream, [tokens([a]), last([b], sampling_pb2.FINISH_REASON_LENGTH)])
    assert [(piece.text, list(piece.token_ids)) for piece in pieces] == [("a", [a]), ("b", [b])]
    assert pieces[0].finish is None
    finish = pieces[1].finish
    assert finish is not None
    assert (finish.reason, finish.stop_reason) == (FinishReason.LENGTH, "")
    usage = finish.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 2, 4)
    assert (usage.preemptions, usage.prefill_chunks, usage.max_batch, usage.total_seconds) == (3, 3, 5, 2.0)


@pytest.mark.unit
def test_how_long_it_queued_is_known_before_the_workers_last_message(toy_tokenizer: Tokenizer) -> None:
    stream = new_stream(toy_tokenizer, stops=["b"])
    stream.start(worker_pb2.Started(cached_tokens=4, queue_seconds=0.5))
    (piece,) = run(stream, [tokens(toy_tokenizer.encode("ab"))])
    assert piece.finish is not None
    assert (piece.finish.stop_reason, piece.finish.usage.queue_seconds) == ("b", 0.5)


@pytest.mark.unit
def test_the_token_that_stops_is_no_text(toy_tokenizer: Tokenizer, stream: SampleStream) -> None:
    a, b = toy_tokenizer.encode("ab")
    (piece,) = run(stream, [last([a, b, b], sampling_pb2.FINISH_REASON_STOP, stop_token_id=b)])
    assert (piece.text, list(piece.token_ids)) == ("ab", [a, b, b])
    assert piece.finish is not None
    assert (piece.finish.reason, piece.finish.stop_reason) == (FinishReason.STOP, str(b))


@pytest.mark.unit
def test_what_stops_is_text_where_it_is_to_be_shown(toy_tokenizer: Tokenizer) -> None:
    a, b = toy_tokenizer.encode("ab")

    def shown(message: worker_pb2.GenerateResponse, *stops: str) -> tuple[str, str, list[bytes]]:
        scanner = StopScanner(StopAutomaton(stops), shown=True) if stops else None
        reader = LogprobReader(toy_tokenizer, toy_tokenizer.special_ids)
        sample = SampleStream(0, 7, Detokenizer(toy_tokenizer), scanner, reader, stop_shown=True)
        message.logprobs.extend(told(message.token_ids))
        (piece,) = run(sample, [message])
        assert piece.finish is not None
        return piece.text, piece.finish.stop_reason, [entry.token.bytes for entry in piece.logprobs]

    stop = sampling_pb2.FINISH_REASON_STOP
    assert shown(last([a, b], stop, b)) == ("ab", str(b), [b"a", b"b"])
    assert shown(tokens([a, b, a]), "b") == ("ab", "b", [b"a", b"b"])
    # The end of the sequence is a special token, and those are left out.
    assert shown(last([a, END_ID], stop, END_ID)) == ("a", str(END_ID), [b"a", b""])


@pytest.mark.unit
def test_a_stop_string_ends_the_sample_at_the_token_that_completes_it(toy_tokenizer: Tokenizer) -> None:
    stream = new_stream(toy_tokenizer, ["STOP"])
    ids = toy_tokenizer.encode("go STOP more")
    stream.start(worker_pb2.Started(cached_tokens=6))
    pieces = run(stream, [worker_pb2.GenerateResponse(), tokens(ids[:5]), tokens(ids[5:]), tokens(ids)])
    # "go ST" shows "go " and holds "ST"; "OP" completes the stop at the second token of the next message.
    assert [(piece.text, len(piece.token_ids)) for piece in pieces] == [("go ", 5), ("", 2)]
    finish = pieces[-1].finish
    assert finish is not None
    assert (finish.reason, finish.stop_reason) == (FinishReason.STOP, "STOP")
    # The first token came with the second message, at second 2; the worker's own figures are not known.
    usage = finish.usage
    assert (usage.completion_tokens, usage.cached_tokens, usage.first_token_seconds) == (7, 6, 2.0)


@pytest.mark.unit
def test_held_back_text_comes_with_the_end(toy_tokenizer: Tokenizer) -> None:
    stream = new_stream(toy_tokenizer, ["STOP"])
    face = toy_tokenizer.encode("😀")
    pieces = run(stream, [tokens(toy_tokenizer.encode("ST")), last(face[:2], sampling_pb2.FINISH_REASON_ABORTED)])
    assert [piece.text for piece in pieces] == ["", "ST\ufffd"]
    assert pieces[-1].finish is not None
    assert pieces[-1].finish.reason is FinishReason.ABORTED


@pytest.mark.unit
def test_nothing_follows_the_finish(toy_tokenizer: Tokenizer, stream: SampleStream) -> None:
    (a,) = toy_tokenizer.encode("a")
    assert len(run(stream, [last([a], sampling_pb2.FINISH_REASON_LENGTH), tokens([a])])) == 1


@pytest.mark.unit
def test_an_unknown_reason_is_the_workers_fault(stream: SampleStream) -> None:
    with pytest.raises(ValueError, match="reason 0"):
        stream.push(last([], sampling_pb2.FINISH_REASON_UNSPECIFIED), 1.0)


@pytest.mark.property
@given(
    text=st.text(st.sampled_from("ab😀é "), max_size=30),
    stops=st.lists(st.text(st.sampled_from("ab😀"), min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(0, 120), max_size=10),
)
def test_texts_concatenate_whatever_the_messages(
    toy_tokenizer: Tokenizer, text: str, stops: list[str], cuts: list[int]
) -> None:
    ids = toy_tokenizer.encode(text)
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    messages = [tokens(ids[start:end]) for start, end in pairwise(edges)]
    pieces = run(new_stream(toy_tokenizer, stops), [*messages, last([], sampling_pb2.FINISH_REASON_LENGTH)])
    # The stop that completes first; of several that complete there, the longest.
    ends = [(at + len(stop), -len(stop)) for stop in stops if (at := text.find(stop)) >= 0]
    expected = text if not ends else text[: min(ends)[0] + min(ends)[1]]
    assert "".join(piece.text for piece in pieces) == expected
    assert [piece.finish is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    streamed = [id_ for piece in pieces for id_ in piece.token_ids]
    assert streamed == ids[: len(streamed)]
    assert ends or streamed == ids


@pytest.mark.unit
def test_logprobs_have_the_bytes_of_the_text(toy_tokenizer: Tokenizer, stream: SampleStream) -> None:
    # Four byte tokens of an emoji, one letter, and the end, which is a token and no text.
    ids = [*toy_tokenizer.encode("🐙a"), END_ID]
    message = last(ids, sampling_pb2.FINISH_REASON_STOP, END_ID)
    message.logprobs.extend(told(ids))
    message.started.prompt_logprobs.extend(told([1, 2]))
    (piece,) = run(stream, [message])
    assert piece.text == "🐙a"
    assert [entry.token.token_id for entry in piece.logprobs] == ids
    assert b"".join(entry.token.bytes for entry in piece.logprobs).decode() == piece.text
    assert piece.logprobs[0].token.text == "\ufffd"
    assert piece.logprobs[4].token == TokenLogprob(ids[4], "a", b"a", -float(ids[4]))
    assert [one.token_id for one in piece.logprobs[4].top] == [ids[4], ids[4] + 1]
    assert piece.logprobs[5].token.text == toy_tokenizer.token(END_ID)
    assert [entry.token.token_id for entry in piece.prompt_logprobs] == [1, 2]


@pytest.mark.unit
def test_logprobs_end_with_the_token_of_the_stop_string(toy_tokenizer: Tokenizer) -> None:
    ids = toy_tokenizer.encode("abcde")
    message = tokens(ids)
    message.logprobs.extend(told(ids))
    (piece,) = run(new_stream(toy_tokenizer, ["bc"]), [message])
    assert (piece.text, list(piece.token_ids)) == ("a", ids[:3])
    assert [entry.token.token_id for entry in piece.logprobs] == ids[:3]
