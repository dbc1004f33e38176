"""From pieces to the objects of OpenAI's API."""

import json
import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.http.echo import Echo, echoed
from gateway.http.fan_out import complete
from gateway.http.logprob_shapes import chat_logprobs, completion_logprobs
from gateway.http.shapes import ChatShape, Chunks, CompletionShape, Head, Part, Shape, whole_of
from gateway.http.sse import event
from gateway.logprobs import TokenLogprob, TokenLogprobs
from gateway.streams import Finish, FinishReason, Piece, Usage
from service.errors import ServiceError

pytestmark = pytest.mark.unit

HEAD = Head("id-1", 7, "m", "fp_1")


def finish(reason: FinishReason = FinishReason.STOP, tokens: int = 3) -> Finish:
    return Finish(reason, "", Usage(prompt_tokens=10, completion_tokens=tokens, cached_tokens=8))


def entry(text: str, utf8: bytes, logprob: float = -1.0) -> TokenLogprobs:
    token = TokenLogprob(1, text, utf8, logprob)
    return TokenLogprobs(token, (token,))


# Two prompts with two answers each: choice = 2 * prompt + sample. Choices 1 and 2 mix; 0 begins with held-back text.
PARTS = [
    Part(0, 0, Piece(0, "", (1,))),
    Part(0, 0, Piece(0, "a", (2,))),
    Part(0, 1, Piece(1, "b", (3,))),
    Part(1, 2, Piece(0, "c", (4,))),
    Part(0, 1, Piece(1, "B", (), finish(FinishReason.LENGTH, 4))),
    Part(0, 0, Piece(0, "", (5,), finish())),
    Part(1, 2, Piece(0, "C", (6,), finish())),
    Part(1, 3, Piece(1, "d", (7,), finish(tokens=1))),
]


def streamed(shape: Shape) -> list[dict[str, Any]]:
    chunks = Chunks(shape, HEAD)
    made = [chunk for part in PARTS if (chunk := chunks.of(part)) is not None]
    return [*made, chunks.usage()]


def test_chunks_add_up_to_the_whole() -> None:
    whole = whole_of(ChatShape(), HEAD, PARTS)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert texts == ["a", "bB", "cC", "d"]
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "length", "stop", "stop"]
    # A prompt counts once: 10 + 10; answers count all: 3 + 4 + 3 + 1.
    usage = {"prompt_tokens": 20, "completion_tokens": 11, "total_tokens": 31}
    assert whole["usage"] == {**usage, "prompt_tokens_details": {"cached_tokens": 16}}
    *chunks, last = streamed(ChatShape())
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    added = [""] * 4
    for choice in (chunk["choices"][0] for chunk in chunks):
        added[choice["index"]] += choice["delta"].get("content", "")
    assert added == texts
    # The role comes once per choice; a piece without text makes no chunk.
    roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
    assert (sorted(roles), len(chunks)) == ([0, 1, 2, 3], len(PARTS) - 1)


def test_usage_tells_migrations_where_there_were_any() -> None:
    # Of two samples one was whole before the second worker was lost.
    ends = [
        Finish(FinishReason.STOP, "", Usage(10, 3, migrations=1, paused_seconds=0.25)),
        Finish(FinishReason.STOP, "", Usage(10, 4, migrations=2, paused_seconds=0.5)),
    ]
    parts = [Part(0, index, Piece(index, "a", (1,), end)) for index, end in enumerate(ends)]
    usage = whole_of(ChatShape(), HEAD, parts)["usage"]
    assert (usage["migrations"], usage["paused_seconds"], usage["completion_tokens"]) == (2, 0.5, 7)


def test_completions_have_texts() -> None:
    whole = whole_of(CompletionShape(), HEAD, PARTS)
    assert [choice["text"] for choice in whole["choices"]] == ["a", "bB", "cC", "d"]
    assert {chunk["object"] for chunk in streamed(CompletionShape())} == {whole["object"]} == {"text_completion"}


def test_offsets_count_characters_however_tokens_cut_them() -> None:
    # "é" in two tokens, then "x": é begins at 0 and x at 1, and é's second byte lies where é does.
    entries = [entry("\ufffd", b"\xc3"), entry("\ufffd", b"\xa9", -math.inf), entry("x", b"x")]
    assert completion_logprobs(entries, 0)["text_offset"] == [0, 0, 1]
    assert completion_logprobs(entries, 5)["text_offset"] == [5, 5, 6]
    assert completion_logprobs(entries, 0)["token_logprobs"] == [-1.0, -9999.0, -1.0]
    content = chat_logprobs(entries)["content"]
    assert bytes(byte for token in content for byte in token["bytes"]) == "éx".encode()
    assert content[1]["top_logprobs"] == [{"token": "\ufffd", "logprob": -9999.0, "bytes": [0xA9]}]


def test_streamed_offsets_go_on_where_the_last_chunk_ended() -> None:
    pieces = [
        Piece(0, "ab", (1, 2), None, (entry("a", b"a"), entry("b", b"b"))),
        Piece(0, "", (3,), None, (entry("c", b"c"),)),
    ]
    chunks = Chunks(CompletionShape(), HEAD)
    made = [chunks.of(Part(0, 0, piece)) for piece in pieces]
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in made if chunk] == [[0, 1], [2]]


def test_of_alternatives_with_one_text_the_likeliest_counts() -> None:
    # Two bytes that begin characters, both U+FFFD alone. The best of all tells whether a choice was greedy.
    top = tuple(
        TokenLogprob(id_, utf8.decode(errors="replace"), utf8, logprob)
        for id_, (utf8, logprob) in enumerate([(b"\xe2", -0.5), (b"a", -1.5), (b"\xf0", -3.0)])
    )
    (best,) = completion_logprobs([TokenLogprobs(top[0], top)], 0)["top_logprobs"]
    assert list(best.items()) == [("\ufffd", -0.5), ("a", -1.5)]


async def _parts(*parts: Part) -> AsyncGenerator[Part, None]:
    for part in parts:
        yield part


async def test_echo_precedes_each_choice_with_the_prompts_logprobs() -> None:
    first = TokenLogprobs(TokenLogprob(1, "p", b"p", math.nan), ())
    prompt = (entry("q", b"q", -2.0),)
    parts = _parts(
        Part(0, 0, Piece(0, "a", (1,), None, (entry("a", b"a"),), prompt)),
        Part(0, 1, Piece(1, "b", (1,), finish(), (entry("b", b"b"),))),
        Part(0, 0, Piece(0, "c", (1,), finish(), (entry("c", b"c"),))),
    )
    whole = whole_of(CompletionShape(), HEAD, [part async for part in echoed(parts, [Echo("pq", (first,))])])
    assert [choice["text"] for choice in whole["choices"]] == ["pqac", "pqb"]
    assert whole["choices"][0]["logprobs"]["tokens"] == ["p", "q", "a", "c"]
    assert whole["choices"][0]["logprobs"]["token_logprobs"] == [None, -2.0, -1.0, -1.0]
    assert whole["choices"][0]["logprobs"]["top_logprobs"][0] is None
    assert whole["choices"][1]["logprobs"]["text_offset"] == [0, 1, 2]


async def test_an_answer_that_was_cut_off_is_an_error() -> None:
    with pytest.raises(ServiceError, match="before it was complete"):
        async for _ in complete(_parts(Part(0, 0, Piece(0, "a", (1,), finish(FinishReason.ABORTED))))):
            pass


def test_an_event_is_one_line_to_every_reader() -> None:
    text = "a\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029é😀"
    data = event({"text": text})
    assert len(data.decode().splitlines()) == 2  # the event and the empty line
    assert json.loads(data.removeprefix(b"data: ")) == {"text": text}
