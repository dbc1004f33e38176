"""One request: sends it to a worker, to another one when that is gone, and turns what comes back into pieces.

A worker is read only when the last piece was taken, so a slow reader holds no more here than one message and what
HTTP/2 flow control lets the worker send ahead.
"""

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass

import grpc
import grpc.aio

from gateway import worker_errors
from gateway.continuation import Continuation
from gateway.grammars import FORMAT, Grammar
from gateway.interruptions import Cause, cause_of
from gateway.journey import Journey
from gateway.logprobs import LogprobReader
from gateway.migration import Abandoned
from gateway.models import ServedModel
from gateway.parameters import Parameters
from gateway.prompts import Prompt
from gateway.reasoning.thinking import Thinking
from gateway.streams import Piece, SampleStream
from gateway.tenancy.tenant import ANONYMOUS, Tenant
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopAutomaton, StopScanner
from gateway.text.tokenizer import Tokenizer
from gateway.tools.calling import Calling
from octavo.worker.v1 import sampling_pb2, worker_pb2
from service.errors import ServiceError

GREEDY_BELOW = 1e-5

# The worker's call ends this much before the client's deadline, so that the client hears from here how far it came:
# at its deadline a client's own clock ends the call, whatever is on its way.
ANSWER_SHARE = 0.05
ANSWER_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Generation:
    """A validated request.

    Attributes:
        request_id: its name in logs, here and at the worker.
        model: what generates.
        prompt: what is continued.
        parameters: how.
        max_tokens: the most tokens generated; prompt and answer fit the context.
        arrived: ``time.monotonic`` when it arrived.
        remaining: seconds until its client's deadline, as of now; None without one.
        calling: how answers call tools; None where they are text.
        thinking: how they reason; None where they are content, all of them.
        tenant: whose it is.
    """

    request_id: str
    model: ServedModel
    prompt: Prompt
    parameters: Parameters
    max_tokens: int
    arrived: float
    remaining: Callable[[], float | None]
    calling: Calling | None = None
    thinking: Thinking | None = None
    tenant: Tenant = ANONYMOUS

    @property
    def answers(self) -> int:
        """Samples that run at once."""
        return self.parameters.best_of or self.parameters.beam_width or self.parameters.n

    @property
    def cost(self) -> int:
        """The most tokens that it takes."""
        return len(self.prompt.token_ids) + self.max_tokens * self.answers

    @property
    def grammar(self) -> Grammar | None:
        """What an answer must match; None for any text."""
        grammar = self.parameters.response_format if self.calling is None else self.calling.grammar
        return grammar if grammar is None or self.thinking is None else self.thinking.before(grammar)

    def patience(self) -> float | None:
        """Seconds until its client has to hear something, as of now; None for no limit."""
        remaining = self.remaining()
        return None if remaining is None else remaining - min(ANSWER_SHARE * remaining, ANSWER_SECONDS)


def worker_request(generation: Generation) -> worker_pb2.GenerateRequest:
    """The request as the worker takes it."""
    parameters = generation.parameters
    sampling = sampling_pb2.SamplingParams(
        temperature=0.0 if parameters.temperature < GREEDY_BELOW else parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        min_p=parameters.min_p,
        # The worker's seeds are unsigned: the same 64 bits.
        seed=None if parameters.seed is None else parameters.seed % 2**64,
        typical_p=parameters.typical_p,
        repetition_penalty=parameters.repetition_penalty,
        presence_penalty=parameters.presence_penalty,
        frequency_penalty=parameters.frequency_penalty,
        logit_bias=parameters.logit_bias,
        bad_words=_bad_words(generation.model.tokenizer, parameters.bad_words),
        grammar=None if generation.grammar is None else generation.grammar.message(),
    )
    stop = sampling_pb2.StopConditions(
        max_tokens=generation.max_tokens,
        min_tokens=parameters.min_tokens,
        stop_token_ids=parameters.stop_token_ids,
        ignore_eos=parameters.ignore_eos,
    )
    beams = None
    if parameters.beam_width is not None:
        beams = sampling_pb2.BeamSearch(
            width=parameters.beam_width,
            length_penalty=parameters.length_penalty,
            early_stopping=parameters.early_stopping,
        )
    return worker_pb2.GenerateRequest(
        request_id=generation.request_id,
        token_ids=generation.prompt.token_ids,
        sampling=sampling,
        stop=stop,
        logprobs=parameters.logprobs,
        prompt_logprobs=parameters.prompt_logprobs,
        n=parameters.n,
        best_of=parameters.best_of,
        beam_search=beams,
        priority=max(parameters.priority, generation.tenant.best_priority),
        tenant=generation.tenant.digest_root,
        salt=parameters.cache_salt,
    )


def _bad_words(tokenizer: Tokenizer, words: Iterable[str]) -> Iterator[sampling_pb2.TokenIds]:
    """Each word as it is tokenized at the start of a text and behind a space."""
    for word in words:
        with contextlib.suppress(ValueError):  # a lone surrogate, which no model writes
            spellings = [tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}")]
            for ids in spellings if spellings[0] != spellings[1] else spellings[:1]:
                if ids:
                    yield sampling_pb2.TokenIds(ids=ids)


async def pieces(generation: Generation, journey: Journey) -> AsyncGenerator[Piece, None]:
    """Run a request on a worker, and on others when that is gone.

    The worker's call ends with this generator: at once when the last sample has come to a stop string, and when the
    generator is closed or cancelled because the client left.

    Raises:
        ServiceError: what went wrong, in terms of the client's request.
        InvalidRequest: the worker does not take the client's parameters.
    """
    samples = [_sample(generation, index) for index in range(generation.parameters.n)]
    state = Continuation(worker_request(generation), samples)
    while not state.finished:
        answered = False
        patience = generation.patience()
        if patience is not None and patience <= 0:
            raise ServiceError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "the deadline passed before a worker was asked",
                reason="DEADLINE_EXCEEDED",
            )
        try:
            async with journey.call(state.request(), patience) as call:
                async for message in call:
                    answered = True
                    if (paused_seconds := journey.answered()) is not None:
                        state.migrated(paused_seconds)
                    piece = state.push(message, time.monotonic() - generation.arrived)
                    overtaken = piece is not None and piece.finish is not None and state.overtaken
                    if overtaken:
                        # Before the piece is handed on: a slow reader must not keep the worker generating.
                        call.cancel()
                    elif (piece is None or piece.finish is not None) and state.overtakes(message.index):
                        journey.worker.abort_sample(generation.request_id, message.index)
                    if piece is not None:
                        yield piece
                    if overtaken:
                        return
            if not state.finished:
                raise worker_errors.ended_early(journey.worker.address, state.tokens)
        except (Abandoned, grpc.aio.AioRpcError) as error:
            if not state.finished:
                await _move(generation, journey, state, error, answered=answered)


async def _move(
    generation: Generation,
    journey: Journey,
    state: Continuation,
    error: Abandoned | grpc.aio.AioRpcError,
    *,
    answered: bool,
) -> None:
    """Have another worker go on after an error.

    Raises:
        ServiceError: the error, where none can.
        InvalidRequest: the worker does not take the client's parameters.
    """
    address = journey.worker.address
    if isinstance(error, Abandoned):
        cause, failure = Cause.FROZEN, worker_errors.frozen(address, state.tokens)
    else:
        found = cause_of(error, answered=answered, again=journey.departures > 0)
        failure = worker_errors.translate(address, error, state.tokens)
        if found is None:
            constraint = FORMAT if generation.grammar is None else generation.grammar.parameter
            raise worker_errors.about_request(address, failure, constraint, generation.prompt.name) from error
        cause = found
    if not state.exact:
        raise worker_errors.not_resumable(failure) from error
    await journey.move(cause, failure, state.longest)


def _sample(generation: Generation, index: int) -> SampleStream:
    parameters, prompt = generation.parameters, generation.prompt
    calling, thinking = generation.calling, generation.thinking
    tokenizer = generation.model.tokenizer
    shown = frozenset[int]().union(*(reads.shown for reads in (calling, thinking) if reads is not None))
    skips, stop_shown = parameters.skip_special_tokens, parameters.include_stop_str_in_output
    hidden = tokenizer.special_ids - shown if skips else frozenset()
    return SampleStream(
        index,
        len(prompt.token_ids),
        Detokenizer(tokenizer, skip_special_tokens=skips, shown=shown, context=prompt.token_ids),
        StopScanner(StopAutomaton(parameters.stop), shown=stop_shown) if parameters.stop else None,
        LogprobReader(tokenizer, hidden),
        None if calling is None else calling.reader(),
        None if thinking is None else thinking.reader(),
        stop_shown=stop_shown,
    )
