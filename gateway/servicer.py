"""The gRPC surface: each call maps a request to the gateway's parts and their answers to messages."""

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from gateway import prompts, runs
from gateway.errors import InvalidRequest
from gateway.generation import Generation
from gateway.messages import (
    chat_response,
    generate_response,
    given_parameters,
    spelled_for,
    template_messages,
    variables_of,
)
from gateway.metrics import Metrics
from gateway.migration import Migrations
from gateway.models import ServedModel
from gateway.naming import named, own_name
from gateway.parameters import VARIABLES, Call, Parameters, validate
from gateway.prompts import PROMPT, Prompt
from gateway.reasoning.thinking import Thinking, thinking_of
from gateway.routing import Router
from gateway.settings import GatewaySettings
from gateway.tenancy.gate import Caller, Gate
from gateway.tenancy.grpc_door import current_tenant
from gateway.tool_messages import functions_of
from gateway.tools.calling import calling_of
from gateway.tools.functions import TOOLS
from gateway.tools.reader import CallCollector
from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """``octavo.gateway.v1.GatewayService``."""

    def __init__(
        self, router: Router, settings: GatewaySettings, metrics: Metrics, migrations: Migrations, gate: Gate
    ) -> None:
        self._router = router
        self._max_prompt_bytes = settings.max_prompt_bytes
        self._default_max_tokens = settings.default_max_tokens
        self._tool_parser = settings.tool_parser
        self._reasoning_parser = settings.reasoning_parser
        self._metrics = metrics
        self._migrations = migrations
        self._gate = gate

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        with (
            self._metrics.call("Generate"),
            named(context),
            spelled_for(request),
            self._gate.call(current_tenant()) as caller,
        ):
            model = self._router.model(request.model)
            parameters = validate(Call.GENERATE, given_parameters(request), model.vocab_size)
            prompt = await self._prompt(model, request, parameters)
            header = _header(model, parameters.request_id)
            task = self._generation(header, model, prompt, parameters, context, caller)
            async with runs.running(task, caller, self._migrations, self._metrics.grpc) as pieces:
                if parameters.echo:
                    text = await runs.prompt_text(task)
                    for index in range(parameters.n):
                        yield gateway_pb2.GenerateResponse(header=header, index=index, text=text)
                async for piece in pieces:
                    yield generate_response(header, piece)

    async def Chat(self, request: gateway_pb2.ChatRequest, context: Context) -> AsyncIterator[gateway_pb2.ChatResponse]:
        with (
            self._metrics.call("Chat"),
            named(context),
            spelled_for(request),
            self._gate.call(current_tenant()) as caller,
        ):
            model = self._router.model(request.model)
            parameters = validate(Call.CHAT, given_parameters(request), model.vocab_size)
            prompt = await self._conversation(model, request, parameters)
            header = _header(model, parameters.request_id)
            thinking = thinking_of(model, prompt, parameters, self._reasoning_parser)
            task = self._generation(header, model, prompt, parameters, context, caller, thinking)
            calls: dict[int, CallCollector] = {}
            async with runs.running(task, caller, self._migrations, self._metrics.grpc) as pieces:
                async for piece in pieces:
                    role = "" if piece.index in calls else "assistant"
                    if role:
                        calls[piece.index] = CallCollector()
                    complete = calls[piece.index].add(piece.calls) if piece.calls else ()
                    yield chat_response(header, piece, role=role, calls=complete)

    async def Tokenize(self, request: gateway_pb2.TokenizeRequest, context: Context) -> gateway_pb2.TokenizeResponse:
        with self._metrics.call("Tokenize"), named(context), spelled_for(request), self._gate.call(current_tenant()):
            model = self._router.model(request.model)
            header = _header(model, "")
            match request.WhichOneof("input"):
                case "text":
                    prompt = await prompts.from_text(model, request.text, self._max_prompt_bytes)
                    return gateway_pb2.TokenizeResponse(header=header, token_ids=prompt.token_ids)
                case "chat":
                    tools = functions_of(request.chat.tools)
                    variables = variables_of(request.chat.chat_template_kwargs)
                    parameters = validate(Call.CHAT, {TOOLS: tools, VARIABLES: variables}, model.vocab_size)
                    prompt = await self._conversation(model, request.chat, parameters)
                    return gateway_pb2.TokenizeResponse(
                        header=header, token_ids=prompt.token_ids, rendered=prompt.text or ""
                    )
            raise InvalidRequest({PROMPT: "missing, text or chat is needed"})

    async def Detokenize(
        self, request: gateway_pb2.DetokenizeRequest, context: Context
    ) -> gateway_pb2.DetokenizeResponse:
        with self._metrics.call("Detokenize"), named(context), spelled_for(request), self._gate.call(current_tenant()):
            model = self._router.model(request.model)
            text = await prompts.to_text(
                model, request.token_ids, "token_ids", skip_special_tokens=request.skip_special_tokens
            )
            return gateway_pb2.DetokenizeResponse(header=_header(model, ""), text=text)

    async def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: Context
    ) -> gateway_pb2.ListModelsResponse:
        with self._metrics.call("ListModels"), named(context):
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
            header = gateway_pb2.ResponseHeader(request_id=own_name(""), created=int(time.time()))
            return gateway_pb2.ListModelsResponse(header=header, models=models)

    async def _prompt(self, model: ServedModel, request: gateway_pb2.GenerateRequest, parameters: Parameters) -> Prompt:
        if request.WhichOneof("prompt_kind") == "token_ids":
            return await prompts.from_token_ids(model, request.token_ids.ids)
        if not request.prompt:
            raise InvalidRequest({PROMPT: "empty, at least one character or token id is needed"})
        return await prompts.from_text(
            model, request.prompt, self._max_prompt_bytes, add_special_tokens=parameters.add_special_tokens
        )

    async def _conversation(
        self,
        model: ServedModel,
        chat: gateway_pb2.ChatRequest | gateway_pb2.ChatInput,
        parameters: Parameters,
    ) -> Prompt:
        size = sum(message.ByteSize() for message in (*chat.messages, *chat.tools)) + len(chat.chat_template_kwargs)
        prompts.check_size(size, self._max_prompt_bytes)
        return await prompts.from_messages(
            model,
            template_messages(chat.messages),
            self._max_prompt_bytes,
            continue_final_message=chat.continue_final_message,
            tools=parameters.tools,
            variables=parameters.template_variables,
            add_special_tokens=parameters.add_special_tokens,
        )

    def _generation(
        self,
        header: gateway_pb2.ResponseHeader,
        model: ServedModel,
        prompt: Prompt,
        parameters: Parameters,
        context: Context,
        caller: Caller,
        thinking: Thinking | None = None,
    ) -> Generation:
        default = caller.default_max_tokens(self._default_max_tokens)
        max_tokens = prompts.token_budget(model, prompt, parameters, default)
        task = Generation(
            request_id=header.request_id,
            model=model,
            prompt=prompt,
            parameters=parameters,
            max_tokens=max_tokens,
            arrived=caller.arrived,
            remaining=context.time_remaining,
            calling=calling_of(model, parameters, self._tool_parser),
            thinking=thinking,
            tenant=caller.tenant,
        )
        runs.admit(caller, [task])
        return task


def _header(model: ServedModel, request_id: str) -> gateway_pb2.ResponseHeader:
    return gateway_pb2.ResponseHeader(request_id=own_name(request_id), model=model.name, created=int(time.time()))
