"""The calls that generate: a body becomes generations, their pieces become an answer or a stream of events."""

import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import grpc
from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import prompts, runs
from gateway.errors import InvalidRequest
from gateway.generation import Generation
from gateway.http import fields, sse
from gateway.http.body import ClientLeft, read_object
from gateway.http.completion_prompts import prompts_of
from gateway.http.conversation import messages_of
from gateway.http.door import tenant_of
from gateway.http.echo import echo_of, echoed
from gateway.http.errors import body_of, error_response, shutting_down, spelled
from gateway.http.fan_out import complete, merged, while_connected
from gateway.http.fields import Given
from gateway.http.request_ids import request_id_of
from gateway.http.shapes import Chunks, Head, Part, Shape, whole_of
from gateway.http.sse import EventStream
from gateway.http.surface import Surface
from gateway.models import ServedModel
from gateway.parameters import Call, Parameters, validate
from gateway.prompts import PROMPT, Prompt
from gateway.reasoning.thinking import thinking_of
from gateway.tenancy.gate import Caller
from gateway.tools.calling import calling_of
from service.errors import ServiceError

logger = logging.getLogger(__name__)

# All answers to all prompts of a request run at once.
MAX_ANSWERS = 512

FINGERPRINT_CHARACTERS = 12


class Generating:
    """One call, as an ASGI application for POST."""

    def __init__(self, shape: Shape, surface: Surface) -> None:
        self._shape = shape
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.monotonic()
        request_id = request_id_of(scope)
        events = EventStream(send, self._surface.settings.http_keep_alive_seconds)
        try:
            with self._surface.metrics.call(self._shape.path):
                if self._surface.draining:
                    raise shutting_down()
                document = await read_object(Headers(scope=scope), receive, self._surface.settings.http_max_body_bytes)
                with self._surface.gate.call(tenant_of(scope)) as caller:
                    answer = _Answer(self._shape, self._surface, caller, document, request_id, arrived)
                    response = await while_connected(receive, answer.give(events), self._surface.cut_off)
            if response is not None:
                await response(scope, receive, send)
            return
        except ServiceError as caught:
            # Its frames hold the whole prompt, and one of them this name: the cycle would lie there until a collection.
            error = caught.with_traceback(None)
            logger.info("%s: %s: %s", self._shape.path, error.code.name, error.logged, extra={"request_id": request_id})
        except Exception:
            logger.exception("%s failed", self._shape.path, extra={"request_id": request_id})
            message = f"{self._shape.path} failed; see the log of the service"
            error = ServiceError(grpc.StatusCode.INTERNAL, message, reason="INTERNAL")
        if isinstance(error, ClientLeft):
            return
        if not events.started:
            await error_response(error)(scope, receive, send)
            return
        # The status is out already. A stream that breaks off does not say that it is done.
        await events.write(sse.event(body_of(error)))
        await events.end()


class _Answer:
    """One request on its way."""

    def __init__(
        self,
        shape: Shape,
        surface: Surface,
        caller: Caller,
        document: Mapping[str, Any],
        request_id: str,
        arrived: float,
    ) -> None:
        self._shape = shape
        self._surface = surface
        self._caller = caller
        self._document = document
        self._request_id = request_id
        self._arrived = arrived

    async def give(self, events: EventStream) -> Response | None:
        """Generate; returns the whole answer, or None when it went out as events.

        Raises:
            ServiceError: the request cannot be served, or failed.
        """
        names = {PROMPT: "messages"} if self._shape.call is Call.CHAT else {}
        with spelled(names):
            given = fields.read(self._shape.call, self._document)
        with spelled({**names, **given.names}):
            model = self._surface.router.model(given.model)
            parameters = validate(self._shape.call, given.parameters, model.vocab_size)
            tasks = self._tasks(model, await self._prompts(model, given, parameters), parameters)
            runs.admit(self._caller, tasks)
            return await self._run(events, given, tasks)

    async def _run(self, events: EventStream, given: Given, tasks: Sequence[Generation]) -> Response | None:
        """Generate what was validated."""
        model, parameters = tasks[0].model, tasks[0].parameters
        echoes = [await echo_of(task) for task in tasks] if parameters.echo else []
        fingerprint = f"fp_{model.fingerprint[:FINGERPRINT_CHARACTERS]}"
        head = Head(f"{self._shape.id_prefix}{uuid.uuid4().hex}", int(time.time()), model.name, fingerprint)
        migrations, metrics = self._surface.migrations, self._surface.metrics.http
        sources = [runs.running(task, self._caller, migrations, metrics) for task in tasks]
        together = merged(sources, parameters.n)
        if echoes:
            together = echoed(together, echoes)
        async with contextlib.aclosing(complete(together)) as parts:
            if given.stream:
                if tasks[0].grammar is not None:
                    events.head_seconds = sse.COMPILE_SECONDS
                prompt_tokens = sum(len(task.prompt.token_ids) for task in tasks) if given.continuous_usage else None
                chunks = Chunks(self._shape, head, prompt_tokens)
                await self._send_events(events, chunks, parts, include_usage=given.include_usage)
                return None
            whole = whole_of(self._shape, head, [part async for part in parts])
        return Response(to_json(whole), media_type="application/json")

    async def _prompts(self, model: ServedModel, given: Given, parameters: Parameters) -> Sequence[Prompt]:
        max_bytes = self._surface.settings.max_prompt_bytes
        if self._shape.call is not Call.CHAT:
            return await prompts_of(model, self._document, max_bytes, add_special_tokens=parameters.add_special_tokens)
        return [
            await prompts.from_messages(
                model,
                messages_of(self._document),
                max_bytes,
                continue_final_message=given.continue_final_message,
                tools=parameters.tools,
                variables=parameters.template_variables,
                add_special_tokens=parameters.add_special_tokens,
            )
        ]

    def _tasks(self, model: ServedModel, found: Sequence[Prompt], parameters: Parameters) -> list[Generation]:
        answers = len(found) * (parameters.best_of or parameters.beam_width or parameters.n)
        if answers > MAX_ANSWERS:
            raise InvalidRequest({PROMPT: f"{answers} answers found, allowed are at most {MAX_ANSWERS} to all prompts"})
        default = self._caller.default_max_tokens(self._surface.settings.default_max_tokens)
        settings, chats = self._surface.settings, self._shape.call is Call.CHAT
        calling = calling_of(model, parameters, settings.tool_parser)
        return [
            Generation(
                request_id=self._request_id if len(found) == 1 else f"{self._request_id}-{number}",
                model=model,
                prompt=prompt,
                parameters=parameters,
                max_tokens=prompts.token_budget(model, prompt, parameters, default),
                arrived=self._arrived,
                remaining=_no_deadline,
                calling=calling,
                thinking=thinking_of(model, prompt, parameters, settings.reasoning_parser) if chats else None,
                tenant=self._caller.tenant,
            )
            for number, prompt in enumerate(found)
        ]

    async def _send_events(
        self, events: EventStream, chunks: Chunks, parts: AsyncGenerator[Part, None], *, include_usage: bool
    ) -> None:
        async with events.kept_alive():
            async for part in parts:
                chunk = chunks.of(part)
                if chunk is None:
                    continue
                if include_usage:
                    # Every chunk has the field then, and the last one fills it, whoever did before.
                    chunk.setdefault("usage", None)
                await events.write(sse.event(chunk))
        if include_usage:
            await events.write(sse.event(chunks.usage()))
        await events.write(sse.DONE)
        await events.end()


def _no_deadline() -> None:
    return None
