"""Worker messages become pieces of text. Pure: no network, and time comes in as an argument.

    worker tokens -> detokenizer -> reasoning -> stop strings -> calls of tools -> pieces
                                  (told apart)   (of content)    (where there are tools)

The texts of a sample's pieces, concatenated, are its whole text: the decoded tokens, up to a stop string, without the
token that stopped it (unless what stops is to be shown), without calls and without reasoning.
"""

import enum
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.logprobs import LogprobReader, TokenLogprobs
from gateway.reasoning.reader import ReasoningReader
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopScanner
from gateway.tools.reader import CallPiece, CallReader
from octavo.worker.v1 import sampling_pb2, worker_pb2


class FinishReason(enum.Enum):
    """Why a sample ended; names as on the wire."""

    STOP = enum.auto()
    LENGTH = enum.auto()
    ABORTED = enum.auto()
    TOOL_CALLS = enum.auto()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sample took. What only the worker's last message tells is 0 when a stop string ended the sample before.

    Of a sample that migrated, tokens and ``cached_tokens`` are those of the whole request, which its first worker
    began; queue time, preemptions, chunks and batch are those of the last worker alone.

    Attributes:
        migrations: times another worker went on with it.
        paused_seconds: from the loss of a worker to the first message of the next, summed.
        reasoning_tokens: of those generated, the reasoning that was told apart, its marks included.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0
    preemptions: int = 0
    prefill_chunks: int = 0
    max_batch: int = 0
    migrations: int = 0
    paused_seconds: float = 0.0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """How a sample ended. ``stop_reason`` is the stop string, or the stop token's id, as text; else empty."""

    reason: FinishReason
    stop_reason: str
    usage: Usage


@dataclass(slots=True)  # made once per token: a frozen one takes three times as long
class Piece:
    """New text and new tokens of sample ``index``; ``finish`` is set in its last piece.

    Text that an unfinished character or a possible stop string holds back comes with a later piece than its tokens.

    Attributes:
        logprobs: one entry per new token, when asked for.
        prompt_logprobs: one entry per token of the prompt after its first, when asked for; in the first piece.
        calls: news of the calls that the sample makes. Their text is no part of ``text``.
        reasoning: new text of its reasoning, which is no part of ``text`` either and comes before it.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    finish: Finish | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    calls: tuple[CallPiece, ...] = ()
    reasoning: str = ""


_REASONS = {
    sampling_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    sampling_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    sampling_pb2.FINISH_REASON_ABORTED: FinishReason.ABORTED,
}


class SampleStream:
    """Assembles one sample.

    Args:
        index: the sample.
        prompt_tokens: length of the prompt, for the usage.
        detokenizer: at the start of the answer.
        scanner: of the request's stop strings; None where it has none.
        reader: of log-probabilities.
        calls: reads calls of tools; None where the text has none.
        reasoning: tells reasoning apart; None where all text is content.
        stop_shown: whether what stops the sample is part of its text.

    Attributes:
        tokens: all that came, up to the finish.
        finish: how it ended; None before.
    """

    def __init__(
        self,
        index: int,
        prompt_tokens: int,
        detokenizer: Detokenizer,
        scanner: StopScanner | None,
        reader: LogprobReader,
        calls: CallReader | None = None,
        reasoning: ReasoningReader | None = None,
        *,
        stop_shown: bool = False,
    ) -> None:
        self.index = index
        self.tokens = array("I")
        self.finish: Finish | None = None
        self._prompt_tokens = prompt_tokens
        self._detokenizer = detokenizer
        self._scanner = scanner
        self._reader = reader
        self._calls = calls
        self._reasoning = reasoning
        self._stop_shown = stop_shown
        self._reasoning_tokens = 0
        self._cached_tokens = 0
        self._queue_seconds = 0.0
        self._first_token_seconds = 0.0
        self._migrations = 0
        self._paused_seconds = 0.0

    def start(self, started: worker_pb2.Started) -> None:
        """Take what the worker tells once for all samples, in the first message of any of them."""
        self._cached_tokens = started.cached_tokens
        self._queue_seconds = started.queue_seconds

    def migrated(self, paused_seconds: float) -> None:
        """Note that another worker goes on with it, after a pause."""
        self._migrations += 1
        self._paused_seconds += paused_seconds

    def push(self, message: worker_pb2.GenerateResponse, seconds: float) -> Piece | None:
        """Take the worker's next message for this sample; the piece it gives, None when it holds nothing new.

        Args:
            message: of this sample. After the finish it is ignored.
            seconds: time since the request arrived.

        Raises:
            ValueError: the worker ended the sample for no known reason.
        """
        if self.finish is not None:
            return None
        ids = message.token_ids[:]
        if ids and not self.tokens:
            self._first_token_seconds = seconds
        texts: list[str] = []
        ended = message.HasField("finished")
        stopped = ended and not self._stop_shown and message.finished.HasField("stop_token_id")
        stop_token = message.finished.stop_token_id if stopped else None
        last = len(ids) - 1
        for position, token in enumerate(ids):
            self.tokens.append(token)
            # The token that stops a sample is one of its tokens, but no part of its text where a stop string is none.
            if position == last and token == stop_token:
                break
            text, stop = self._scan(self._content(self._detokenizer.push_one(token)))
            texts.append(self._read(text))
            if stop is not None:
                texts.append(self._finish(FinishReason.STOP, stop, self._usage(None, seconds)))
            elif self._calls is not None and self._calls.over:
                self._finish(FinishReason.STOP, "", self._usage(None, seconds))
            if self.finish is not None:
                return self._piece(texts, message, ids[: position + 1])
        if ended:
            texts.append(self._end(message.finished, seconds))
        elif not ids:
            return None
        return self._piece(texts, message, ids, stop_token)

    def _piece(
        self,
        texts: list[str],
        message: worker_pb2.GenerateResponse,
        ids: list[int],
        stop_token: int | None = None,
    ) -> Piece:
        """The piece with a message's tokens ``ids``, which may be fewer than it holds."""
        # Once per token: what most messages lack is not even looked into.
        logprobs = self._reader.read(message.logprobs[: len(ids)], stop_token) if message.logprobs else ()
        prompt = self._reader.read(message.started.prompt_logprobs) if message.HasField("started") else ()
        calls = () if self._calls is None else self._calls.take()
        reasoning = "" if self._reasoning is None else self._reasoning.take()
        return Piece(self.index, "".join(texts), tuple(ids), self.finish, logprobs, prompt, calls, reasoning)

    def _end(self, finished: worker_pb2.Finished, seconds: float) -> str:
        """Set the finish that the worker tells; returns the text held back until now."""
        if finished.reason not in _REASONS:
            raise ValueError(f"the worker ended a sample with reason {finished.reason}")
        text = self._content(self._detokenizer.finish())
        if self._reasoning is not None:
            text += self._reasoning.finish()
        usage = self._usage(finished.stats, seconds)
        text, stop = self._scan(text)
        if stop is not None:
            return self._read(text) + self._finish(FinishReason.STOP, stop, usage)
        stop_reason = str(finished.stop_token_id) if finished.HasField("stop_token_id") else ""
        held = "" if self._scanner is None else self._scanner.finish()
        text = self._read(text + held)
        return text + self._finish(_REASONS[finished.reason], stop_reason, usage)

    def _content(self, text: str) -> str:
        """What of a text is no reasoning."""
        if self._reasoning is None:
            return text
        reasoned = self._reasoning.reasons
        text = self._reasoning.push(text)
        if reasoned or self._reasoning.reasons:
            self._reasoning_tokens = len(self.tokens)
        return text

    def _scan(self, text: str) -> tuple[str, str | None]:
        """What of a text no stop string can cut any more, and the one that ended it."""
        return (text, None) if self._scanner is None else self._scanner.push(text)

    def _read(self, text: str) -> str:
        """What of a text is no call."""
        return text if self._calls is None else self._calls.push(text)

    def _finish(self, reason: FinishReason, stop_reason: str, usage: Usage) -> str:
        """Set the finish; returns the text that might have become a call."""
        text = "" if self._calls is None else self._calls.finish()
        if self._calls is not None and self._calls.called and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        self.finish = Finish(reason, stop_reason, usage)
        return text

    def _usage(self, stats: worker_pb2.RequestStats | None, seconds: float) -> Usage:
        usage = Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self.tokens),
            cached_tokens=self._cached_tokens,
            queue_seconds=self._queue_seconds,
            first_token_seconds=self._first_token_seconds,
            total_seconds=seconds,
            migrations=self._migrations,
            paused_seconds=self._paused_seconds,
            reasoning_tokens=self._reasoning_tokens,
        )
        if stats is None:
            return usage
        usage = replace(
            usage,
            queue_seconds=stats.queue_seconds,
            preemptions=stats.recomputes + stats.swaps,
            prefill_chunks=stats.prefill_chunks,
            max_batch=stats.max_batch,
        )
        if self._migrations:
            return usage
        return replace(usage, cached_tokens=stats.cached_tokens, first_token_seconds=stats.first_token_seconds)
