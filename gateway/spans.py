"""What a request's span tells, in the words of OpenTelemetry's GenAI conventions where they have one.

Never text: no prompt, no answer, no stop string. A request with several prompts has one span; its counts add up.
"""

import asyncio
import time

from gateway.errors import InvalidRequest
from gateway.generation import Generation
from gateway.streams import Piece
from octavo.gateway.v1 import gateway_pb2
from service import traced_calls, tracing
from service.errors import ServiceError
from service.tracing import Span, Value

_SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"]

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "octavo"}
COMPLETION = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "octavo"}

_OF_METHOD = {"Chat": CHAT, "Generate": COMPLETION}
GRPC: dict[str, dict[str, Value]] = {
    f"{_SERVICE.full_name}/{method.name}": dict(_OF_METHOD.get(method.name, {})) for method in _SERVICE.methods
}
"""The gRPC methods that are traced, each with what is known of all its calls."""


class Story:
    """Tells a span of one generation."""

    def __init__(self, span: Span, task: Generation) -> None:
        self._span = span
        self._arrived = task.arrived
        self._begun = self._ended = False
        parameters = task.parameters
        span.set("gen_ai.request.model", task.model.name)
        span.set("gen_ai.response.model", task.model.name)
        span.set("gen_ai.response.id", task.request_id)
        span.set("gen_ai.request.max_tokens", task.max_tokens)
        span.set("gen_ai.request.temperature", parameters.temperature)
        span.set("gen_ai.request.top_p", parameters.top_p)
        span.set("gen_ai.request.choice.count", parameters.n)
        span.set("octavo.tenant", task.tenant.name)
        if parameters.top_k:
            span.set("gen_ai.request.top_k", parameters.top_k)
        if parameters.seed is not None:
            span.set("gen_ai.request.seed", parameters.seed)
        span.add("gen_ai.usage.input_tokens", len(task.prompt.token_ids))

    def see(self, piece: Piece) -> None:
        """Tell of a piece on its way to the client."""
        if piece.token_ids:
            self._span.add("gen_ai.usage.output_tokens", len(piece.token_ids))
            if not self._begun:
                self._begun = True
                self._span.set("gen_ai.response.time_to_first_chunk", time.monotonic() - self._arrived)
                self._span.event("first token")
        if piece.finish is None:
            return
        self._span.append("gen_ai.response.finish_reasons", piece.finish.reason.name.lower())
        usage = piece.finish.usage
        self._span.add("octavo.preemptions", usage.preemptions)
        if usage.migrations:
            self._span.set("octavo.migrations", usage.migrations)
            self._span.set("octavo.paused_seconds", usage.paused_seconds)
        if not self._ended:  # the prompt is the same for all its answers
            self._ended = True
            self._span.add("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
            self._span.set("octavo.queue_seconds", usage.queue_seconds)

    def failed(self, error: BaseException) -> None:
        """Tell why there is no answer, or no whole one."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._span.fail("CANCELLED", fault=False)
        elif isinstance(error, ServiceError):
            self._span.fail(error.reason, error.logged, fault=error.code in traced_calls.FAULTS)
        elif isinstance(error, InvalidRequest):
            self._span.fail(error.reason, fault=False)
        else:
            self._span.fail(type(error).__name__)


def story_of(task: Generation) -> Story | None:
    """Of a generation of the request at hand; None when that is not traced."""
    span = tracing.current()
    return Story(span, task) if span.recording else None
