"""What the HTTP surface answers, as JSON Schema. Pure."""

from typing import Any

from gateway.http.conversation import REASONING
from gateway.http.shapes import FINISH_REASONS, Shape

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def _object(**properties: Schema) -> Schema:
    """An object with all of these fields; a later version may add others."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def _with(schema: Schema, **properties: Schema) -> Schema:
    """An object that may have these fields too."""
    return {**schema, "properties": {**schema["properties"], **properties}}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TOKEN = {"token": _TEXT, "logprob": {"type": ["number", "null"]}, "bytes": _array(_COUNT)}
_CHAT_LOGPROBS = _object(content=_array(_object(**_TOKEN, top_logprobs=_array(_object(**_TOKEN)))))
_COMPLETION_LOGPROBS = _object(
    tokens=_array(_TEXT),
    token_logprobs=_array({"type": ["number", "null"]}),
    top_logprobs=_array({"type": ["object", "null"]}),
    text_offset=_array(_COUNT),
)
_MESSAGE = _with(_object(role={"const": "assistant"}, content=_TEXT_OR_NULL), **dict.fromkeys(REASONING, _TEXT))
_HEAD = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "system_fingerprint": _TEXT}
_END = {"finish_reason": {"enum": [*FINISH_REASONS.values(), None]}, "stop_reason": _TEXT_OR_NULL}


def _answer(name: str, usage: Schema, choice: Schema) -> Schema:
    return _object(**_HEAD, object={"const": name}, choices=_array(choice), usage=usage)


SCHEMAS: dict[str, Schema] = {
    "Error": _object(error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)),
    "Usage": _with(
        _object(
            prompt_tokens=_COUNT,
            completion_tokens=_COUNT,
            total_tokens=_COUNT,
            prompt_tokens_details=_object(cached_tokens=_COUNT),
        ),
        completion_tokens_details=_object(reasoning_tokens=_COUNT),
    ),
    "Model": _object(
        id=_TEXT,
        object={"const": "model"},
        created=_COUNT,
        owned_by=_TEXT,
        max_model_len=_COUNT,
        ready_workers=_COUNT,
    ),
    "ChatCompletion": _answer(
        "chat.completion",
        _named("Usage"),
        _object(index=_COUNT, message=_MESSAGE, logprobs=_or_null(_CHAT_LOGPROBS), **_END),
    ),
    "Completion": _answer(
        "text_completion",
        _named("Usage"),
        _object(index=_COUNT, text=_TEXT, logprobs=_or_null(_COMPLETION_LOGPROBS), **_END),
    ),
    "ChatCompletionChunk": _object(
        **_HEAD,
        object={"const": "chat.completion.chunk"},
        choices=_array(
            _object(
                index=_COUNT,
                delta={"type": "object"},
                logprobs=_or_null(_CHAT_LOGPROBS),
                finish_reason=_END["finish_reason"],
            )
        ),
    ),
}

ERROR = _named("Error")
MODEL = _named("Model")
MODELS = _object(object={"const": "list"}, data=_array(MODEL))
HEALTH = _object(status={"enum": ["SERVING", "NOT_SERVING"]})
LIVE = _object(status={"const": "LIVE"}, time=_COUNT)


def of(shape: Shape) -> tuple[Schema, str]:
    """The schema of a whole answer, and the name of the schema of its pieces."""
    if shape.whole == "chat.completion":
        return _named("ChatCompletion"), "ChatCompletionChunk"
    return _named("Completion"), "Completion"
