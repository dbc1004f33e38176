"""The gRPC skin of the worker."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from dataclasses import dataclass, field
from typing import Any

import grpc

from model_worker import spans
from model_worker.engine.engine import STOPPED, Engine
from model_worker.engine.group import end_of
from model_worker.engine.progress import Progress
from model_worker.engine.sequence import EndReason, Sequence
from model_worker.request_counts import RequestCounts
from model_worker.requests import RequestReader
from model_worker.sampling.sampler import ALL_BANNED
from model_worker.sampling_fields import logprob_messages
from model_worker.streams import Stream, StreamTable
from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from service import request_ids, tracing
from service.errors import ServiceError, invalid_argument

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20

FINISH_REASONS = {
    EndReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    EndReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
    EndReason.ABORTED: sampling_pb2.FINISH_REASON_ABORTED,
}


@dataclass(slots=True)
class Worker:
    """What the servicer serves; filled in while the worker starts.

    Attributes:
        worker_id: random identity of this process.
        state: one line for people: what the worker is doing or waiting for.
        ready: whether it takes requests.
        draining: set by ``Drain``: no new requests for good.
        tokenizer: the tokenizer files by name, for gateways without a shared folder.
        counts: how its requests went.
    """

    worker_id: str
    max_queued: int
    streams: StreamTable
    state: str = "starting"
    ready: bool = False
    draining: bool = False
    model: worker_pb2.GetModelResponse | None = None
    tokenizer: dict[str, bytes] | None = None
    engine: Engine | None = None
    reader: RequestReader | None = None
    counts: RequestCounts = field(default_factory=RequestCounts)


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """``WorkerService`` over one engine."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Generate(
        self, request: worker_pb2.GenerateRequest, context: Any
    ) -> AsyncGenerator[worker_pb2.GenerateResponse, None]:
        worker = self._worker
        request_ids.enter(request.request_id)
        with worker.counts.refusals():
            stream, engine = await self._admitted(request)
        sequence, span = stream.sequence, tracing.current()
        tokens, reasons = 0, []
        try:
            spans.follow(span, sequence)
            with worker.counts.request(sequence):
                engine.submit(sequence)
                async with contextlib.aclosing(self._responses(stream)) as responses:
                    async for response in responses:
                        tokens += len(response.token_ids)
                        if response.HasField("finished"):
                            reasons.append(response.finished.reason)
                        yield response
        finally:
            _log_end(sequence, tokens)
            spans.tell(span, sequence, engine, spans.Sent(tokens, reasons))
            # However the call ends, the engine hears of it; for a sequence that ended this has no effect.
            engine.abort(sequence)
            worker.streams.close(sequence)

    async def _admitted(self, request: worker_pb2.GenerateRequest) -> tuple[Stream, Engine]:
        """A stream for a request, and the engine that it is to be given to.

        Raises:
            ServiceError: the request is not taken.
        """
        worker = self._worker
        if not worker.ready or worker.draining or worker.engine is None or worker.reader is None:
            state = "draining" if worker.draining else worker.state
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE, f"worker not ready: {state}", reason="NOT_READY", retry_seconds=1.0
            )
        if request.sampling.HasField("grammar"):  # which takes time to compile
            sequence = await asyncio.to_thread(worker.reader.read, request)
        else:
            sequence = worker.reader.read(request)
        if sequence.group is not None and not worker.engine.forks:
            raise ServiceError(
                grpc.StatusCode.UNIMPLEMENTED,
                "n: the KV manager forks no sequences, so this worker generates one sample per request",
                reason="CAPABILITY_FORK",
            )
        # Open streams, not the scheduler's queue: it sees a burst only at its next step.
        if len(worker.streams) - worker.engine.running_requests >= worker.max_queued:
            raise ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{worker.max_queued} requests are queued already",
                reason="QUEUE_FULL",
                retry_seconds=1.0,
            )
        stream = worker.streams.open(sequence)
        if stream is None:
            raise ServiceError(
                grpc.StatusCode.ALREADY_EXISTS,
                f"request_id: {sequence.request_id!r} is in use",
                reason="REQUEST_ID_IN_USE",
            )
        request_ids.enter(sequence.request_id)
        return stream, worker.engine

    async def _responses(self, stream: Stream) -> AsyncGenerator[worker_pb2.GenerateResponse, None]:
        sequence = stream.sequence
        started: worker_pb2.Started | None = worker_pb2.Started(
            seed=sequence.sampling.seed, prompt_tokens=sequence.prompt_length
        )
        unfinished = stream.samples
        while unfinished:
            by_sample: dict[int, list[Progress]] = {}
            for progress in await stream.get():
                by_sample.setdefault(progress.sequence.sampling.index, []).append(progress)
            for index, brought in by_sample.items():
                response = self._response(sequence.request_id, index, brought)
                if started is not None:
                    line = brought[-1].sequence.timeline
                    started.cached_tokens = line.cached_tokens
                    started.queue_seconds = max(0.0, line.first_step - line.arrived)
                    # Complete: whoever has a token has computed the prompt.
                    started.prompt_logprobs.extend(logprob_messages(sequence.prompt_logprobs))
                    response.started.CopyFrom(started)
                    started = None
                unfinished -= response.HasField("finished")
                yield response

    def _response(self, request_id: str, index: int, brought: list[Progress]) -> worker_pb2.GenerateResponse:
        """What several steps brought for one sample."""
        response = worker_pb2.GenerateResponse(
            header=self._header(request_id, brought[-1].step),
            index=index,
            token_ids=[token for progress in brought for token in progress.tokens],
            logprobs=logprob_messages(entry for progress in brought for entry in progress.logprobs),
        )
        if brought[-1].ended is not None:
            response.finished.CopyFrom(finished(brought[-1]))
        return response

    async def Abort(self, request: worker_pb2.AbortRequest, context: Any) -> worker_pb2.AbortResponse:
        stream = self._worker.streams.find(request.request_id)
        if stream is not None and self._worker.engine is not None:
            self._worker.engine.abort(stream.sequence)
        return worker_pb2.AbortResponse(header=self._header(request.request_id), found=stream is not None)

    async def AbortSamples(
        self, request: worker_pb2.AbortSamplesRequest, context: Any
    ) -> worker_pb2.AbortSamplesResponse:
        if not request.indexes:
            raise invalid_argument("indexes", "empty, at least one is to end")
        stream = self._worker.streams.find(request.request_id)
        if stream is not None and self._worker.engine is not None:
            _check_indexes(stream, request.indexes)
            self._worker.engine.abort_samples(stream.sequence, frozenset(request.indexes))
        return worker_pb2.AbortSamplesResponse(header=self._header(request.request_id), found=stream is not None)

    async def GetModel(self, request: worker_pb2.GetModelRequest, context: Any) -> worker_pb2.GetModelResponse:
        if self._worker.model is None:
            raise self._still_starting()
        return self._worker.model

    async def GetTokenizer(
        self, request: worker_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[worker_pb2.GetTokenizerResponse]:
        if self._worker.tokenizer is None:
            raise self._still_starting()
        for name, data in self._worker.tokenizer.items():
            for start in range(0, max(len(data), 1), CHUNK_BYTES):
                yield worker_pb2.GetTokenizerResponse(name=name, size=len(data), data=data[start : start + CHUNK_BYTES])

    async def GetStats(self, request: worker_pb2.GetStatsRequest, context: Any) -> worker_pb2.GetStatsResponse:
        worker = self._worker
        response = worker_pb2.GetStatsResponse(header=self._header(), ready=worker.ready, state=worker.state)
        if worker.draining:
            response.ready, response.state = False, "draining"
        if worker.engine is None:
            return response
        response.waiting_requests = worker.engine.waiting_requests
        response.running_requests = worker.engine.running_requests
        response.epoch = worker.engine.epoch
        response.num_blocks = worker.engine.limits.num_blocks
        statistics = worker.engine.statistics
        for name in statistics.__slots__:
            setattr(response, name, getattr(statistics, name))
        return response

    async def Drain(self, request: worker_pb2.DrainRequest, context: Any) -> worker_pb2.DrainResponse:
        self._worker.draining = True
        return worker_pb2.DrainResponse(header=self._header(), live_requests=len(self._worker.streams))

    def _header(self, request_id: str = "", step: int | None = None) -> worker_pb2.ResponseHeader:
        engine = self._worker.engine
        if step is None:
            step = engine.step if engine else 0
        return worker_pb2.ResponseHeader(worker_id=self._worker.worker_id, request_id=request_id, step=step)

    def _still_starting(self) -> ServiceError:
        return ServiceError(
            grpc.StatusCode.UNAVAILABLE, f"worker {self._worker.state}", reason="NOT_READY", retry_seconds=1.0
        )


def _log_end(sequence: Sequence, tokens: int) -> None:
    line, reason = sequence.timeline, end_of(sequence)
    logger.info(
        "request ended: %s",
        "its caller left" if reason is None else reason.name.lower(),
        extra={
            "prompt_tokens": sequence.prompt_length,
            "completion_tokens": tokens,
            "cached_tokens": line.cached_tokens,
            "steps": line.steps,
            "preemptions": line.recomputes + line.swaps,
            "queue_seconds": round(max(0.0, line.first_step - line.arrived), 4),
            "seconds": round(time.monotonic() - line.arrived, 4),
        },
    )


def _check_indexes(stream: Stream, indexes: Collection[int]) -> None:
    """Whether these samples can end without the others.

    Raises:
        ServiceError: there is no such sample, or which ones there are is chosen at the end.
    """
    if (greatest := max(indexes)) >= stream.samples:
        raise invalid_argument("indexes", f"{greatest}, must be below n, which is {stream.samples}")
    group = stream.sequence.group
    if group is not None and group.chosen_at_end:
        raise ServiceError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "indexes: the samples of this request are chosen when all have ended, so they end together",
            reason="CHOSEN_AT_END",
        )


def finished(progress: Progress) -> worker_pb2.Finished:
    """The end of a sample.

    Raises:
        ServiceError: it ended by an error.
    """
    sequence, ended = progress.sequence, progress.ended
    assert ended is not None
    reason = sequence.end_reason
    if reason is EndReason.REJECTED:
        raise ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"token_ids: {ended.message}",
            reason="NEVER_FITS",
            fields={"token_ids": ended.message},
        )
    if reason is EndReason.FAILED and ended.message.startswith(ALL_BANNED):
        # The request's own rules exclude each other, on any worker.
        raise ServiceError(grpc.StatusCode.FAILED_PRECONDITION, ended.message, reason="NO_TOKEN_LEFT")
    if reason is EndReason.FAILED:
        raise ServiceError(grpc.StatusCode.INTERNAL, ended.message or "the step failed", reason="STEP_FAILED")
    if reason is None:
        # What leaves in order is no victim of its requests; a gateway counts the others.
        why = "SHUTTING_DOWN" if ended.message == STOPPED else "ENGINE_FAILED"
        raise ServiceError(grpc.StatusCode.UNAVAILABLE, ended.message, reason=why, retry_seconds=1.0)
    result = worker_pb2.Finished(reason=FINISH_REASONS[reason], stats=request_stats(sequence))
    if reason is EndReason.STOP:
        result.stop_token_id = sequence.tokens[-1]
    if sequence.sampling.top_logprobs is not None:
        result.cumulative_logprob = sequence.cumulative_logprob
    return result


def request_stats(sequence: Sequence) -> worker_pb2.RequestStats:
    """What a sequence went through, as a message."""
    line = sequence.timeline
    return worker_pb2.RequestStats(
        prompt_tokens=sequence.prompt_length,
        cached_tokens=line.cached_tokens,
        completion_tokens=sequence.generated,
        prefill_chunks=line.prefill_chunks,
        steps=line.steps,
        max_batch=line.max_batch,
        mixed_steps=line.mixed_steps,
        refusals=line.refusals,
        recomputes=line.recomputes,
        swaps=line.swaps,
        queue_seconds=max(0.0, line.first_step - line.arrived),
        first_token_seconds=max(0.0, line.first_token - line.arrived),
        total_seconds=max(0.0, line.ended - line.arrived),
    )
