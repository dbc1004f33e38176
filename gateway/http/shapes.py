"""The objects of OpenAI's API: what a piece is in a stream, and what all of them are together. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gateway.http.call_shapes import call_deltas, whole_call
from gateway.http.conversation import REASONING
from gateway.http.logprob_shapes import characters, chat_logprobs, completion_logprobs
from gateway.logprobs import TokenLogprobs
from gateway.parameters import Call
from gateway.streams import Finish, FinishReason, Piece
from gateway.tools.reader import CallCollector, CallPiece, WholeCall

FINISH_REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


class Head(NamedTuple):
    """What every object of one answer begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    """Names the weights and their number type, which the tokens of a seed depend on."""


class Shape(Protocol):
    """One call's spelling of an answer."""

    call: Call
    path: str
    id_prefix: str
    whole: str
    """Name of the object that holds a whole answer."""

    chunk: str
    """Name of the object that holds a piece of it."""

    def said(self, text: str, calls: Sequence[WholeCall], reasoning: str) -> dict[str, Any]:
        """A choice's whole text, calls and reasoning."""
        ...

    def added(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        """What a choice gains; ``first`` for its first chunk."""
        ...

    def logprobs(self, entries: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
        """Log-probabilities of consecutive tokens, the first ``offset`` characters into the choice's text."""
        ...


class ChatShape:
    """``/v1/chat/completions``.

    Args:
        reasoning: names of the fields that have a message's reasoning, which is no part of OpenAI's API.
    """

    call = Call.CHAT
    path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def __init__(self, reasoning: Sequence[str] = REASONING[:1]) -> None:
        self._reasoning = reasoning

    def said(self, text: str, calls: Sequence[WholeCall], reasoning: str) -> dict[str, Any]:
        beside = self._beside(reasoning, [whole_call(call) for call in calls])
        content = text or (None if beside else "")
        return {"message": {"role": "assistant", "content": content, "refusal": None, **beside}}

    def added(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        beside = self._beside(piece.reasoning, call_deltas(piece.calls))
        if first:
            return {"delta": {"role": "assistant", "content": piece.text or (None if beside else ""), **beside}}
        return {"delta": {"content": piece.text, **beside} if piece.text else beside}

    def _beside(self, reasoning: str, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What a message has beside its content; where that is all, the content is null."""
        beside: dict[str, Any] = dict.fromkeys(self._reasoning, reasoning) if reasoning else {}
        return {**beside, "tool_calls": calls} if calls else beside

    def logprobs(self, entries: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
        return chat_logprobs(entries)


class CompletionShape:
    """``/v1/completions``: its chunks are whole answers in small."""

    call = Call.GENERATE
    path = "/v1/completions"
    id_prefix = "cmpl-"
    whole = "text_completion"
    chunk = "text_completion"

    def said(self, text: str, calls: Sequence[WholeCall], reasoning: str) -> dict[str, Any]:
        return {"text": text}

    def added(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        return {"text": piece.text}

    def logprobs(self, entries: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
        return completion_logprobs(entries, offset)


class Part(NamedTuple):
    """A piece of choice ``choice``, which continues prompt ``prompt``."""

    prompt: int
    choice: int
    piece: Piece


@dataclass(slots=True)
class Totals:
    """Usage over all choices: a prompt counts once, however many answers it got, and a migration of all as one."""

    completion_tokens: int = 0
    _reasoning_tokens: int = 0
    _migrations: int = 0
    _paused_seconds: float = 0.0
    _prompts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, prompt: int, finish: Finish) -> None:
        usage = finish.usage
        self.completion_tokens += usage.completion_tokens
        self._reasoning_tokens += usage.reasoning_tokens
        self._migrations = max(self._migrations, usage.migrations)
        self._paused_seconds = max(self._paused_seconds, usage.paused_seconds)
        self._prompts[prompt] = (usage.prompt_tokens, usage.cached_tokens)

    def shown(self) -> dict[str, Any]:
        prompt_tokens = sum(tokens for tokens, _ in self._prompts.values())
        # No part of OpenAI's API, and seldom there.
        migrated = {"migrations": self._migrations, "paused_seconds": self._paused_seconds} if self._migrations else {}
        reasoned = {"completion_tokens_details": {"reasoning_tokens": self._reasoning_tokens}}
        return {
            **migrated,
            **_tokens(prompt_tokens, self.completion_tokens),
            **(reasoned if self._reasoning_tokens else {}),
            "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in self._prompts.values())},
        }


class Chunks:
    """Makes the chunks of one stream.

    Args:
        shape: of the call.
        head: of the answer.
        prompt_tokens: of all prompts, where each chunk tells the usage so far; None where none does.

    Attributes:
        totals: usage of the choices that ended.
    """

    def __init__(self, shape: Shape, head: Head, prompt_tokens: int | None = None) -> None:
        self.totals = Totals()
        self._shape = shape
        self._head = head
        self._prompt_tokens = prompt_tokens
        self._offsets: dict[int, int] = {}
        self._generated: dict[int, int] = {}

    def of(self, part: Part) -> dict[str, Any] | None:
        """The chunk of a part; None when it holds nothing to say yet."""
        piece = part.piece
        self._count(part)
        said = piece.text or piece.reasoning
        if not said and not piece.logprobs and piece.finish is None and not _tells_calls(piece):
            return None
        first = part.choice not in self._offsets
        offset = self._offsets.get(part.choice, 0)
        self._offsets[part.choice] = offset + characters(piece.logprobs)
        choice = {
            "index": part.choice,
            **self._shape.added(piece, first=first),
            "logprobs": self._shape.logprobs(piece.logprobs, offset) if piece.logprobs else None,
            "finish_reason": None,
        }
        if piece.finish is not None:
            self.totals.add(part.prompt, piece.finish)
            choice |= _ended(piece.finish)
        chunk = _object(self._shape.chunk, self._head, [choice])
        if self._prompt_tokens is not None:
            chunk["usage"] = _tokens(self._prompt_tokens, sum(self._generated.values()))
        return chunk

    def _count(self, part: Part) -> None:
        """Tokens so far, also of a piece that makes no chunk yet; what a choice took is said at its end."""
        so_far = self._generated.get(part.choice, 0) + len(part.piece.token_ids)
        finish = part.piece.finish
        self._generated[part.choice] = so_far if finish is None else finish.usage.completion_tokens

    def usage(self) -> dict[str, Any]:
        """The chunk after the last, which holds the usage and no choice."""
        return {**_object(self._shape.chunk, self._head, []), "usage": self.totals.shown()}


def _tokens(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _tells_calls(piece: Piece) -> bool:
    """Whether a piece has news of calls; that one is complete is none, for chunks do not say it."""
    return any(call.complete is None for call in piece.calls)


def whole_of(shape: Shape, head: Head, parts: Iterable[Part]) -> dict[str, Any]:
    """The whole answer, from all parts of all its choices in any order between choices."""
    texts: dict[int, list[str]] = {}
    reasonings: dict[int, list[str]] = {}
    calls: dict[int, list[CallPiece]] = {}
    logprobs: dict[int, list[TokenLogprobs]] = {}
    ends: dict[int, Finish] = {}
    totals = Totals()
    for part in parts:
        texts.setdefault(part.choice, []).append(part.piece.text)
        reasonings.setdefault(part.choice, []).append(part.piece.reasoning)
        calls.setdefault(part.choice, []).extend(part.piece.calls)
        logprobs.setdefault(part.choice, []).extend(part.piece.logprobs)
        if part.piece.finish is not None:
            ends[part.choice] = part.piece.finish
            totals.add(part.prompt, part.piece.finish)
    choices = [
        {
            "index": choice,
            **shape.said("".join(texts[choice]), CallCollector().add(calls[choice]), "".join(reasonings[choice])),
            "logprobs": shape.logprobs(logprobs[choice], 0) if logprobs[choice] else None,
            **_ended(ends[choice]),
        }
        for choice in sorted(texts)
    ]
    return {**_object(shape.whole, head, choices), "usage": totals.shown()}


def _object(kind: str, head: Head, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.system_fingerprint,
        "choices": choices,
    }


def _ended(finish: Finish) -> dict[str, Any]:
    # stop_reason is no part of OpenAI's API: which of the stop strings, or the id of the stop token.
    return {"finish_reason": FINISH_REASONS[finish.reason], "stop_reason": finish.stop_reason or None}
