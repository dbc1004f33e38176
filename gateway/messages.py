"""The gRPC surface's messages to and from the gateway's own types. Pure."""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message
from pydantic_core import from_json

from gateway import json_words
from gateway.errors import InvalidRequest
from gateway.grammars import FORMAT, Grammar, one_of
from gateway.logprobs import TokenLogprob, TokenLogprobs
from gateway.parameters import BY_NAME, VARIABLES
from gateway.prompts import PROMPT
from gateway.schemas import schema_of
from gateway.streams import FinishReason, Piece, Usage
from gateway.text.call_arguments import read_arguments
from gateway.tool_messages import choice_of, functions_of
from gateway.tools.functions import TOOLS
from gateway.tools.reader import WholeCall
from octavo.gateway.v1 import gateway_pb2
from service.errors import ServiceError

Request = (
    gateway_pb2.GenerateRequest
    | gateway_pb2.ChatRequest
    | gateway_pb2.TokenizeRequest
    | gateway_pb2.DetokenizeRequest
    | gateway_pb2.ListModelsRequest
)

_OPTIONS = frozenset(gateway_pb2.GenerateOptions.DESCRIPTOR.fields_by_name)


def given_parameters(request: gateway_pb2.GenerateRequest | gateway_pb2.ChatRequest) -> dict[str, Any]:
    """What the caller gave, by parameter name: the options, and the request's own fields that are parameters."""
    own = [(field, value) for field, value in request.ListFields() if field.name in BY_NAME]
    plain = {field.name: _plain(value) for field, value in [*request.options.ListFields(), *own]}
    if isinstance(request, gateway_pb2.ChatRequest) and request.tools:
        plain[TOOLS] = functions_of(request.tools)
    if isinstance(request, gateway_pb2.ChatRequest) and request.chat_template_kwargs:
        plain[VARIABLES] = variables_of(request.chat_template_kwargs)
    return {name: value for name, value in plain.items() if value is not None}


def variables_of(text: str) -> Mapping[str, Any]:
    """More names for the chat template, from the JSON that they come in; empty text has none.

    Raises:
        InvalidRequest: it is no JSON, or no object.
    """
    try:
        variables = from_json(text, allow_inf_nan=False) if text else {}
    except ValueError as error:
        raise InvalidRequest({VARIABLES: "no JSON found, allowed is the text of an object"}) from error
    if not isinstance(variables, dict):
        raise InvalidRequest({VARIABLES: f"{json_words.kind(variables)} found, allowed is the text of an object"})
    return variables


def _plain(value: Any) -> Any:
    if isinstance(value, gateway_pb2.ResponseFormat):
        return _grammar(value)
    if isinstance(value, gateway_pb2.ToolChoice):
        return choice_of(value)
    if isinstance(value, str | int | float | Message):
        return value
    return dict(value) if isinstance(value, Mapping) else tuple(value)


def _grammar(wanted: gateway_pb2.ResponseFormat) -> Grammar | None:
    match wanted.WhichOneof("kind"):
        case "json_object":
            return Grammar("json_object", "") if wanted.json_object else None
        case "choice":
            return one_of(f"{FORMAT}.choice.texts", wanted.choice.texts)
        case "json_schema":
            return Grammar("json_schema", json.dumps(schema_of(f"{FORMAT}.json_schema", wanted.json_schema)))
        case "regex" | "lark" as notation:
            return Grammar(notation, getattr(wanted, notation))
    return None


@contextlib.contextmanager
def spelled_for(request: Request) -> Iterator[None]:
    """Turn ``InvalidRequest`` into INVALID_ARGUMENT with the field paths of this request."""
    try:
        yield
    except InvalidRequest as error:
        fields = {_path(request, name): problem for name, problem in error.problems.items()}
        message = "; ".join(f"{field}: {problem}" for field, problem in fields.items())
        raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, message, reason=error.reason, fields=fields) from error


def _path(request: Request, name: str) -> str:
    base = name.partition("[")[0].partition(".")[0]
    if base == PROMPT:
        return _prompt_path(request) + name[len(PROMPT) :]
    if base in (TOOLS, VARIABLES) and isinstance(request, gateway_pb2.TokenizeRequest):
        return f"chat.{name}"
    return f"options.{name}" if base in _OPTIONS else name


def _prompt_path(request: Request) -> str:
    match request:
        case gateway_pb2.GenerateRequest():
            return "token_ids.ids" if request.WhichOneof("prompt_kind") == "token_ids" else "prompt"
        case gateway_pb2.ChatRequest():
            return "messages"
        case gateway_pb2.TokenizeRequest():
            return "chat.messages" if request.WhichOneof("input") == "chat" else "text"
    return PROMPT


def template_messages(messages: Sequence[gateway_pb2.ChatMessage]) -> Iterator[dict[str, Any]]:
    """The conversation as chat templates read it: plain values in the shape of OpenAI's API, made one by one.

    Raises:
        InvalidRequest: the arguments of a tool call are no JSON.
    """
    for position, message in enumerate(messages):
        yield _template_message(position, message)


def _template_message(position: int, message: gateway_pb2.ChatMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        plain["name"] = message.name
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            _template_tool_call(f"{PROMPT}[{position}].tool_calls[{at}]", call)
            for at, call in enumerate(message.tool_calls)
        ]
    return plain


def _template_tool_call(name: str, call: gateway_pb2.ToolCall) -> dict[str, Any]:
    try:
        arguments = read_arguments(call.arguments_json)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest({f"{name}.arguments_json": "no JSON found"}) from error
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def generate_response(header: gateway_pb2.ResponseHeader, piece: Piece) -> gateway_pb2.GenerateResponse:
    """A piece for Generate."""
    # Once per token: fields given as arguments, a submessage above all, cost more than twice as much.
    response = gateway_pb2.GenerateResponse()
    response.header.CopyFrom(header)
    response.index = piece.index
    response.text = piece.text
    response.token_ids.extend(piece.token_ids)
    if piece.logprobs:
        response.logprobs.extend(_logprobs(piece.logprobs))
    if piece.prompt_logprobs:
        response.prompt_logprobs.extend(_logprobs(piece.prompt_logprobs))
    if piece.finish is not None:
        response.finish_reason = _FINISH_REASONS[piece.finish.reason]
        response.stop_reason = piece.finish.stop_reason
        response.usage.CopyFrom(_usage(piece.finish.usage))
    return response


def chat_response(
    header: gateway_pb2.ResponseHeader, piece: Piece, *, role: str, calls: Iterable[WholeCall]
) -> gateway_pb2.ChatResponse:
    """A piece for Chat.

    Args:
        header: of the request.
        piece: of one answer.
        role: empty but in an answer's first message.
        calls: those that are complete with this piece.
    """
    response = gateway_pb2.ChatResponse()
    response.header.CopyFrom(header)
    response.index = piece.index
    response.role = role
    response.content = piece.text
    response.reasoning = piece.reasoning
    response.token_ids.extend(piece.token_ids)
    if piece.logprobs:
        response.logprobs.extend(_logprobs(piece.logprobs))
    if piece.finish is not None:
        response.finish_reason = _FINISH_REASONS[piece.finish.reason]
        response.stop_reason = piece.finish.stop_reason
        response.usage.CopyFrom(_usage(piece.finish.usage))
    for call in calls:
        response.tool_calls.add(id=call.id, name=call.name, arguments_json=call.arguments)
    return response


_FINISH_REASONS = {
    FinishReason.STOP: gateway_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: gateway_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORTED: gateway_pb2.FINISH_REASON_ABORTED,
    FinishReason.TOOL_CALLS: gateway_pb2.FINISH_REASON_TOOL_CALLS,
}


def _logprobs(entries: Iterable[TokenLogprobs]) -> Iterator[gateway_pb2.TokenLogprobs]:
    for entry in entries:
        yield gateway_pb2.TokenLogprobs(token=_logprob(entry.token), top=map(_logprob, entry.top))


def _logprob(token: TokenLogprob) -> gateway_pb2.TokenLogprob:
    return gateway_pb2.TokenLogprob(token_id=token.token_id, text=token.text, bytes=token.bytes, logprob=token.logprob)


def _usage(usage: Usage) -> gateway_pb2.Usage:
    return gateway_pb2.Usage(**dataclasses.asdict(usage))
