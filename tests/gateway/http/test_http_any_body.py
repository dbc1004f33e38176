"""Whatever JSON a body holds, it is served or refused: nothing else is ever raised on the way to the worker."""

import asyncio
import json
import re
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from gateway import prompts
from gateway.generation import Generation, worker_request
from gateway.http import fields, formats
from gateway.http.completion_prompts import prompts_of
from gateway.http.conversation import messages_of
from gateway.http.errors import body_of, spelled, status_of
from gateway.models import ServedModel
from gateway.parameters import TABLE, Call, validate
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from gateway.tools.calling import calling_of
from service.errors import ServiceError

pytestmark = pytest.mark.property

MAX_BYTES = 1000

NAMES = sorted(
    {row.name for row in TABLE}
    | fields.IGNORED
    | fields.NOT_ASKED.keys()
    | formats.FIELDS
    | {"model", "stream", "stream_options", "prompt", "messages", "max_completion_tokens", "top_logprobs"}
    | {"continue_final_message", "add_generation_prompt", "max_token"}
)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from([0, 1, -1, "auto", "none", 1e308])
ANY = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
# Near enough to the truth to get past the first checks.
TEXTS = st.text(max_size=8) | st.sampled_from(["user", "assistant", "tool", "system", "developer", "refuse me", "text"])
PARTS = st.fixed_dictionaries({}, optional={"type": TEXTS | ANY, "text": TEXTS | ANY})
CALLS = st.fixed_dictionaries(
    {}, optional={"id": TEXTS | ANY, "function": st.dictionaries(st.sampled_from(["name", "arguments"]), TEXTS | ANY)}
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": TEXTS | ANY,
        "content": TEXTS | ANY | st.lists(PARTS | ANY, max_size=3),
        "name": TEXTS | ANY,
        "tool_calls": ANY | st.lists(CALLS | ANY, max_size=2),
        "tool_call_id": TEXTS | ANY,
    },
)
SCHEMAS = st.dictionaries(st.sampled_from(["type", "properties", "anyOf", "items", "enum"]), TEXTS | ANY, max_size=2)
FUNCTIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["f", "g"]) | ANY,
        "description": TEXTS | ANY,
        "parameters": SCHEMAS | ANY,
        "strict": LEAVES,
    },
)
TOOLS = st.fixed_dictionaries({}, optional={"type": st.just("function") | ANY, "function": FUNCTIONS | ANY})
CHOICES = st.lists(TEXTS | ANY, max_size=3)
CONSTRAINTS = {"json": SCHEMAS, "json_object": LEAVES, "regex": TEXTS, "choice": CHOICES, "grammar": TEXTS}
FORMATS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "json_object", "json_schema"]) | ANY,
        "json_schema": st.fixed_dictionaries({}, optional={"schema": SCHEMAS | ANY, "strict": LEAVES}) | ANY,
    },
)
IDS = st.integers(-2, 260)
SPECIAL = {
    "messages": st.lists(MESSAGES | ANY, max_size=3),
    "prompt": TEXTS | st.lists(IDS | ANY, max_size=4) | st.lists(TEXTS | st.lists(IDS, max_size=3), max_size=3),
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "x"]), LEAVES),
    "logit_bias": st.dictionaries(st.integers(-2, 260).map(str) | st.text(max_size=4), LEAVES),
    "stop": TEXTS | st.lists(TEXTS | ANY, max_size=3),
    "tools": st.lists(TOOLS | ANY, max_size=3),
    "tool_choice": TOOLS | st.just("required") | ANY,
    "response_format": FORMATS | ANY,
    "structured_outputs": st.fixed_dictionaries({}, optional=CONSTRAINTS) | ANY,
    "guided_json": SCHEMAS | TEXTS | ANY,
    "guided_choice": CHOICES | ANY,
}
PYTHON = re.compile(r"\b(str|int|float|bool|list|dict|tuple|NoneType) found")
BODIES = st.lists(st.sampled_from(NAMES), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: SPECIAL.get(name, ANY) | ANY for name in names})
)


@pytest.fixture(scope="module")
def loop() -> Any:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(work)


@pytest.mark.parametrize("call", [Call.GENERATE, Call.CHAT])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES)
@example(body={"prompt": [1, 2**70], "messages": [{"role": "user", "content": "a"}]})
@example(body={"logit_bias": {"²": 1}})
@example(body={"prompt": [[7, 2**70]], "messages": [{"role": "user", "content": "a", "tool_calls": [7]}]})
@example(body={"n": 1.5, "seed": 2**70, "min_tokens": 10**90, "stop": 1.5, "top_p": "1", "prompt": "a"})
@example(body={"a name\n": 1})
@example(body={"add_generation_prompt": False, "continue_final_message": True})
@example(
    body={
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"function": {"name": "f", "parameters": {"properties": {"a": 7}, "required": 7, "items": [7]}}}],
        "tool_choice": "required",
    }
)
@example(
    body={
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"function": {"name": "f"}}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"anyOf": 7, "$defs": 7}, "strict": True}},
    }
)
def test_a_body_is_served_or_refused(
    call: Call, body: dict[str, Any], loop: Any, toy_tokenizer: Tokenizer, toy_template: ChatTemplate
) -> None:
    model = ServedModel("bytes", "f", 258, 1000, toy_tokenizer, toy_template)
    # What the parser makes of it, which refuses lone surrogates before anything else sees them.
    try:
        document = from_json(json.dumps(body), allow_inf_nan=False)
    except ValueError:
        return

    error = run(loop, refusal(model, call, document))
    if error is not None:
        assert 400 <= status_of(error) < 500
        answer = body_of(error)["error"]
        assert len(json.dumps(answer)) < 4000
        # Every param is a field that the body has or could have had, and every type is one of JSON's.
        root = re.split(r"[.\[]", answer["param"] or "")[0]
        assert root in fields.known(call) | document.keys() or answer["code"] == "unknown_parameter"
        assert not PYTHON.search(answer["message"])


async def refusal(model: ServedModel, call: Call, document: dict[str, Any]) -> ServiceError | None:
    """Take a body all the way to the worker's request; the error that refuses it, None when it would be sent."""
    names = {prompts.PROMPT: "messages"} if call is Call.CHAT else {}
    try:
        with spelled(names):
            read = fields.read(call, document)
        with spelled({**names, **read.names}):
            parameters = validate(call, read.parameters, model.vocab_size)
            continues = read.continue_final_message
            if call is Call.GENERATE:
                found = await prompts_of(model, document, MAX_BYTES)
            else:
                messages = messages_of(document)
                tools = parameters.tools
                found = [
                    await prompts.from_messages(
                        model, messages, MAX_BYTES, continue_final_message=continues, tools=tools
                    )
                ]
            for prompt in found:
                budget = prompts.token_budget(model, prompt, parameters, 16)
                for family in ("hermes", "llama3_json", "mistral", "pythonic"):
                    calling = calling_of(model, parameters, family)
                    worker_request(Generation("id", model, prompt, parameters, budget, 0.0, lambda: None, calling))
    except ServiceError as error:
        return error
    return None
