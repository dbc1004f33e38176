"""What a request's span tells of its way through the engine: queue, prefill and decode as its parts, the steps of the
device by number. Never tokens.

    octavo.worker.v1.WorkerService/Generate   arrived ......... ended
      queue                                   |---|
      prefill                                     |---|           ends with the first token
      decode                                          |---------|

``octavo.device_steps`` are this worker's steps, ``octavo.kv.steps`` those of the pool's epoch, by which the
record of the KV manager and the worker's messages go; both as ranges, such as ``12-40,44``.
"""

import time
from typing import NamedTuple

from model_worker.engine.engine import Engine
from model_worker.engine.history import History
from model_worker.engine.sequence import Sequence, Timeline
from octavo.worker.v1 import sampling_pb2
from service.tracing import Span

_REASON = "FINISH_REASON_"


class Sent(NamedTuple):
    """What of a request went to its caller."""

    tokens: int
    reasons: "list[sampling_pb2.FinishReason]"
    """Why its samples ended, in that order; those that have not ended are not among them."""


def follow(span: Span, sequence: Sequence) -> None:
    """Have the engine note what the span will tell. To be called before the sequence is submitted."""
    if not span.recording:
        return
    history = History(time.monotonic)
    for member in [sequence] if sequence.group is None else sequence.group.members:
        member.timeline.history = history
    span.set("gen_ai.usage.input_tokens", sequence.prompt_length)
    span.set("octavo.samples", 1 if sequence.group is None else sequence.group.returned)
    span.set("octavo.priority", sequence.priority)


def tell(span: Span, sequence: Sequence, engine: Engine, sent: Sent) -> None:
    """Tell what the engine noted, when the call ends.

    Args:
        span: of the request.
        sequence: the request's handle.
        engine: where it ran.
        sent: what its caller got.
    """
    line, history = sequence.timeline, sequence.timeline.history
    if history is None:
        return
    span.set("gen_ai.usage.output_tokens", sent.tokens)
    span.set("gen_ai.usage.cache_read.input_tokens", line.cached_tokens)
    if sent.reasons:
        names = [sampling_pb2.FinishReason.Name(reason).removeprefix(_REASON).lower() for reason in sent.reasons]
        span.set("gen_ai.response.finish_reasons", names)
    span.set("octavo.kv.pool", engine.spec.pool)
    span.set("octavo.kv.epoch", engine.epoch)
    span.set("octavo.kv.steps", str(history.manager_steps))
    span.set("octavo.device_steps", str(history.device_steps))
    span.set("octavo.device_steps.count", len(history.device_steps))
    span.set("octavo.prefill_chunks", line.prefill_chunks)
    span.set("octavo.max_batch", line.max_batch)
    span.set("octavo.refusals", line.refusals)
    span.set("octavo.preemptions", len(history.preemptions))
    for preemption in history.preemptions:
        span.event("preempted", preemption.at, mode=preemption.mode)
    _parts(span, line)


def _parts(span: Span, line: Timeline) -> None:
    """Queue, prefill and decode, as far as it came; one that has begun and not ended ends with the call."""
    if not line.arrived:
        return
    _part(span, "queue", line.arrived, line.first_step)
    if line.first_step:
        _part(span, "prefill", line.first_step, line.first_token)
    if line.first_token:
        span.event("first token", line.first_token)
        _part(span, "decode", line.first_token, line.ended)


def _part(span: Span, name: str, start: float, end: float) -> None:
    span.child(name, start=start).end(end or None)
