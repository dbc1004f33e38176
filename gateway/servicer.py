"""The gRPC surface: each call maps a request to the gateway's parts and their answers to messages."""

import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc.aio

from gateway import generation, prompts
from gateway.errors import InvalidRequest
from gateway.generation import Generation
from gateway.messages import chat_response, generate_response, given_parameters, spelled_for, template_messages
from gateway.metrics import Metrics
from gateway.models import ServedModel
from gateway.parameters import Call, Parameters, validate
from gateway.prompts import PROMPT, Prompt
from gateway.routing import Router
from gateway.settings import GatewaySettings
from gateway.streams import Piece
from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """``octavo.gateway.v1.GatewayService``."""

    def __init__(self, router: Router, settings: GatewaySettings, metrics: Metrics) -> None:
        self._router = router
        self._max_prompt_bytes = settings.max_prompt_bytes
        self._default_max_tokens = settings.default_max_tokens
        self._metrics = metrics

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        arrived = time.monotonic()
        with self._metrics.call("Generate"), spelled_for(request):
            model = self._router.model(request.model)
            parameters = validate(Call.GENERATE, given_parameters(request), model.vocab_size)
            prompt = await self._prompt(model, request)
            header = _header(model, parameters.request_id)
            ready = self._generation(header, model, prompt, parameters, arrived, context)
            if parameters.echo:
                yield gateway_pb2.GenerateResponse(header=header, text=_prompt_text(ready))
            async with contextlib.aclosing(self._run("Generate", ready)) as pieces:
                async for piece in pieces:
                    yield generate_response(header, piece)

    async def Chat(self, request: gateway_pb2.ChatRequest, context: Context) -> AsyncIterator[gateway_pb2.ChatResponse]:
        arrived = time.monotonic()
        with self._metrics.call("Chat"), spelled_for(request):
            model = self._router.model(request.model)
            parameters = validate(Call.CHAT, given_parameters(request), model.vocab_size)
            prompt = await prompts.from_messages(
                model,
                template_messages(request.messages),
                self._max_prompt_bytes,
                continue_final_message=request.continue_final_message,
            )
            header = _header(model, parameters.request_id)
            ready = self._generation(header, model, prompt, parameters, arrived, context)
            role = "assistant"
            async with contextlib.aclosing(self._run("Chat", ready)) as pieces:
                async for piece in pieces:
                    yield chat_response(header, piece, role=role)
                    role = ""

    async def Tokenize(self, request: gateway_pb2.TokenizeRequest, context: Context) -> gateway_pb2.TokenizeResponse:
        with self._metrics.call("Tokenize"), spelled_for(request):
            model = self._router.model(request.model)
            match request.WhichOneof("input"):
                case "text":
                    prompt = await prompts.from_text(model, request.text, self._max_prompt_bytes)
                    rendered = ""
                case "chat":
                    chat = request.chat
                    validate(Call.CHAT, {"tools": tuple(chat.tools)} if chat.tools else {}, model.vocab_size)
                    prompt = await prompts.from_messages(
                        model,
                        template_messages(chat.messages),
                        self._max_prompt_bytes,
                        continue_final_message=chat.continue_final_message,
                    )
                    rendered = prompt.text or ""
                case _:
                    raise InvalidRequest({PROMPT: "missing, text or chat is needed"})
            return gateway_pb2.TokenizeResponse(
                header=_header(model, ""), token_ids=prompt.token_ids, rendered=rendered
            )

    async def Detokenize(
        self, request: gateway_pb2.DetokenizeRequest, context: Context
    ) -> gateway_pb2.DetokenizeResponse:
        with self._metrics.call("Detokenize"), spelled_for(request):
            model = self._router.model(request.model)
            prompts.check_vocabulary(model, request.token_ids, "token_ids")
            text = model.tokenizer.decode(request.token_ids, skip_special_tokens=request.skip_special_tokens)
            return gateway_pb2.DetokenizeResponse(header=_header(model, ""), text=text)

    async def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: Context
    ) -> gateway_pb2.ListModelsResponse:
        with self._metrics.call("ListModels"):
            models = [
                gateway_pb2.Model(
                    id=model.name,
                    max_context=model.max_context,
                    vocab_size=model.vocab_size,
                    ready_workers=ready_workers,
                    has_chat_template=model.template.exists,
                )
                for model, ready_workers in self._router.models()
            ]
            header = gateway_pb2.ResponseHeader(request_id=uuid.uuid4().hex, created=int(time.time()))
            return gateway_pb2.ListModelsResponse(header=header, models=models)

    async def _prompt(self, model: ServedModel, request: gateway_pb2.GenerateRequest) -> Prompt:
        if request.WhichOneof("prompt_kind") == "token_ids":
            return prompts.from_token_ids(model, request.token_ids.ids)
        if not request.prompt:
            raise InvalidRequest({PROMPT: "empty, at least one character or token id is needed"})
        return await prompts.from_text(model, request.prompt, self._max_prompt_bytes)

    def _generation(
        self,
        header: gateway_pb2.ResponseHeader,
        model: ServedModel,
        prompt: Prompt,
        parameters: Parameters,
        arrived: float,
        context: Context,
    ) -> Generation:
        max_tokens = prompts.token_budget(model, len(prompt.token_ids), parameters, self._default_max_tokens)
        return Generation(
            request_id=header.request_id,
            model=model,
            prompt=prompt,
            parameters=parameters,
            max_tokens=max_tokens,
            arrived=arrived,
            remaining=context.time_remaining,
        )

    async def _run(self, method: str, ready: Generation) -> AsyncGenerator[Piece, None]:
        """Run a generation on a worker, timed and logged. Closing it closes the worker's call."""
        worker = self._router.pick(ready.model)
        source = generation.pieces(ready, worker)
        async with (
            contextlib.aclosing(source),
            contextlib.aclosing(self._metrics.observe(source, ready.arrived)) as timed,
        ):
            async for piece in timed:
                if piece.finish is not None:
                    usage = piece.finish.usage
                    logger.info(
                        "%s finished: %s",
                        method,
                        piece.finish.reason.name.lower(),
                        extra={
                            "request_id": ready.request_id,
                            "worker": worker.address,
                            "prompt_tokens": usage.prompt_tokens,
                            "completion_tokens": usage.completion_tokens,
                            "cached_tokens": usage.cached_tokens,
                            "seconds": round(usage.total_seconds, 4),
                        },
                    )
                yield piece


def _header(model: ServedModel, request_id: str) -> gateway_pb2.ResponseHeader:
    return gateway_pb2.ResponseHeader(
        request_id=request_id or uuid.uuid4().hex, model=model.name, created=int(time.time())
    )


def _prompt_text(ready: Generation) -> str:
    if ready.prompt.text is not None:
        return ready.prompt.text
    return ready.model.tokenizer.decode(
        ready.prompt.token_ids, skip_special_tokens=ready.parameters.skip_special_tokens
    )
