"""Structured output and tools with the official Python client: manager, worker and gateway with the demo model.

The model is small and was trained on no tool: what it writes freely is noise, and every answer that has to match does
so by the grammar alone. Greedy and seeded, in float32.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import grpc
import openai
import pytest
from processes import Stack, running_stack
from pydantic import BaseModel, ConfigDict, Field

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

MODEL = "smollm2"
END_ID = 2
USER: list[Any] = [{"role": "user", "content": "Describe the weather of Lima in JSON."}]

# Hermes' conversation format, in short: tools in the system message, calls and results in tags.
TEMPLATE = """{%- if tools %}<|im_start|>system
Call functions inside <tool_call></tool_call>:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Reading(BaseModel):
    """Bounded, so that a model that knows no end comes to one."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Lima", "Cusco"]
    degrees: int = Field(ge=-30, le=50)
    sunny: bool
    words: list[Literal["warm", "dry", "wet"]] = Field(max_length=2)


def tool(model: type[BaseModel], name: str, **more: Any) -> Any:
    function = {"name": name, "description": f"Tells {name}", "parameters": model.model_json_schema(), **more}
    return {"type": "function", "function": function}


class Place(BaseModel):
    country: Literal["Peru", "Chile"]
    height: int = Field(ge=0, le=9999)


TOOLS = [tool(Reading, "report"), tool(Place, "look_up")]
ARGUMENTS: dict[str, type[BaseModel]] = {"report": Reading, "look_up": Place}


@pytest.fixture(scope="module")
def stack(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("hermes")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        shutil.copy(demo_model / name, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    flags = {"num-blocks": 256, "dtype": "float32", "served-name": MODEL}
    gateway = {"http-listen": "127.0.0.1:0", "tokenizer": folder}
    with running_stack(demo_model, worker_flags=flags, gateway_flags=gateway) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{stack.gateway.ready['http']}/v1", api_key="any", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, **given: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": USER, "seed": 7, "max_tokens": 200, **given})


def streamed(client: openai.OpenAI, **given: Any) -> list[tuple[str, list[tuple[str, str]], str]]:
    """Each choice of a stream: text, calls, finish reason. The first delta of a call must have its id and name."""
    texts: dict[int, str] = {}
    calls: dict[int, dict[int, list[str]]] = {}
    ends: dict[int, str] = {}
    for chunk in chat(client, stream=True, **given):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            mine = calls.setdefault(choice.index, {})
            for delta in choice.delta.tool_calls or ():
                if delta.index not in mine:
                    assert delta.id
                    assert delta.type == "function"
                    mine[delta.index] = [delta.function.name, ""]
                else:
                    assert (delta.id, delta.function.name) == (None, None)
                mine[delta.index][1] += delta.function.arguments
            ends[choice.index] = choice.finish_reason or ends.get(choice.index, "")
    return [
        (texts[index], [(name, arguments) for name, arguments in calls[index].values()], ends[index])
        for index in sorted(texts)
    ]


def whole(answer: Any) -> list[tuple[str, list[tuple[str, str]], str]]:
    return [
        (
            choice.message.content or "",
            [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()],
            choice.finish_reason,
        )
        for choice in answer.choices
    ]


def test_a_schema_always_validates_streamed_and_whole(client: openai.OpenAI) -> None:
    schema = {"name": "reading", "strict": True, "schema": Reading.model_json_schema()}
    given: dict[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": schema}, "n": 4, "temperature": 1.5,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    answer = chat(client, **given)
    choices = whole(answer)
    assert len({text for text, _, _ in choices}) > 1
    for text, calls, end in choices:
        Reading.model_validate_json(text)
        assert (calls, end) == ([], "stop")
    # Log-probabilities are the model's own, and spell the text.
    for choice in answer.choices:
        assert b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode() == choice.message.content
    assert streamed(client, **given) == choices


def test_the_clients_own_helpers_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=USER, response_format=Reading, max_tokens=200, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Reading)
    with client.chat.completions.stream(
        model=MODEL, messages=USER, response_format=Reading, max_tokens=200, temperature=0
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed
    strict = openai.pydantic_function_tool(Place, name="look_up")
    answer = client.chat.completions.parse(
        model=MODEL, messages=USER, tools=[strict], tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Place)


def test_every_kind_of_constraint_holds(client: openai.OpenAI) -> None:
    def text(**extra: Any) -> str:
        return str(chat(client, extra_body=extra, temperature=1.2).choices[0].message.content)

    assert re.fullmatch("[A-C]{3}-[0-9]{2}", text(structured_outputs={"regex": "[A-C]{3}-[0-9]{2}"}))
    assert text(structured_outputs={"choice": ["yes", "no, never"]}) in ("yes", "no, never")
    assert text(guided_choice=["été", "hiver"]) in ("été", "hiver")
    assert re.fullmatch("(ab)+!", text(structured_outputs={"grammar": 'start: "ab"+ "!"'}, repetition_penalty=1.3))
    Reading.model_validate_json(text(guided_json=Reading.model_json_schema()))
    completion = client.completions.create(
        model=MODEL, prompt="A colour: ", max_tokens=20, extra_body={"structured_outputs": {"choice": ["red", "blue"]}}
    )
    assert completion.choices[0].text in ("red", "blue")
    # Bounded in bytes by max_tokens: any object is, as far as it goes, JSON.
    any_object = chat(client, response_format={"type": "json_object"}, max_tokens=60, temperature=0).choices[0]
    assert any_object.message.content.startswith("{")
    if any_object.finish_reason == "stop":
        json.loads(any_object.message.content)


def test_a_stop_string_and_a_length_end_a_constrained_answer(client: openai.OpenAI) -> None:
    given = {"structured_outputs": {"regex": "[a-f]{40}"}}
    full = chat(client, extra_body=given, temperature=0).choices[0]
    assert (len(full.message.content), full.finish_reason) == (40, "stop")
    stop = full.message.content[7]
    # With everything at once: two answers, log-probabilities, a seed and a stop string within the grammar.
    cut = chat(client, extra_body=given, temperature=0, stop=stop, n=2, logprobs=True, top_logprobs=1)
    for choice in cut.choices:
        assert (choice.message.content, choice.finish_reason) == (full.message.content.partition(stop)[0], "stop")
        spelled = b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode()
        assert spelled.startswith(choice.message.content + stop)
    short = chat(client, extra_body=given, temperature=0, max_tokens=4).choices[0]
    assert full.message.content.startswith(short.message.content)
    assert short.finish_reason == "length"


@pytest.mark.parametrize("choice", ["required", "look_up"])
def test_calls_that_have_to_be_made_parse(client: openai.OpenAI, choice: str) -> None:
    named = {"type": "function", "function": {"name": choice}}
    # Where a call may be the last one, the end is likely enough to come before the sixteenth.
    given: dict[str, Any] = {
        "tools": TOOLS, "tool_choice": choice if choice == "required" else named, "temperature": 1.5, "n": 2,
        "logit_bias": {END_ID: 12}, "max_tokens": 1000,
    }  # fmt: skip
    choices = whole(chat(client, **given))
    for text, calls, end in choices:
        assert (text, end) == ("", "tool_calls")
        assert 1 <= len(calls) <= (16 if choice == "required" else 1)
        for name, arguments in calls:
            assert choice in ("required", name)
            ARGUMENTS[name].model_validate_json(arguments)
    assert streamed(client, **given) == choices


def test_a_conversation_goes_on_behind_its_calls(client: openai.OpenAI) -> None:
    first = chat(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
    messages = [
        *USER,
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "warm"},
    ]
    before = chat(client, tools=TOOLS, tool_choice="none", max_tokens=4).usage.prompt_tokens
    after = chat(client, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=4)
    assert after.usage.prompt_tokens > before + 10
    assert after.choices[0].message.tool_calls is None
    # The turn before lies in the cache: the template wrote the call as the model had.
    assert after.usage.prompt_tokens_details.cached_tokens >= before // 16 * 16


def test_a_free_model_may_call_or_not(client: openai.OpenAI) -> None:
    plain = whole(chat(client, tools=TOOLS, temperature=0, max_tokens=24))
    assert streamed(client, tools=TOOLS, temperature=0, max_tokens=24) == plain
    assert plain[0][1] == []
    # With JSON wanted, an answer is either.
    schema = {"name": "reading", "schema": Reading.model_json_schema()}
    either: dict[str, Any] = {
        "tools": TOOLS, "response_format": {"type": "json_schema", "json_schema": schema}, "temperature": 1.5, "n": 3,
        "logit_bias": {END_ID: 12}, "max_tokens": 1000,
    }  # fmt: skip
    for text, calls, end in whole(chat(client, **either)):
        if calls:
            assert (text, end) == ("", "tool_calls")
        else:
            Reading.model_validate_json(text)


def test_what_cannot_be_enforced_is_refused_before_anything_is_generated(client: openai.OpenAI) -> None:
    def refused(**given: Any) -> Any:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                chat(client, stream=stream, **given)
            assert caught.value.code == "invalid_value"
        return caught.value

    odd = tool(Place, "odd", parameters={"type": "object", "properties": {"a": {"type": "octopus"}}})
    error = refused(tools=[odd], tool_choice="required")
    assert error.param == "tools"
    assert "octopus" in error.message
    schema = {"name": "s", "schema": {"type": "octopus"}}
    assert refused(response_format={"type": "json_schema", "json_schema": schema}).param == "response_format"
    unclosed = refused(extra_body={"guided_regex": "(["})
    assert unclosed.param == "guided_regex"
    assert "unclosed character class" in unclosed.message
    vast = refused(extra_body={"guided_regex": "(a{1000}){1000}"})
    assert vast.param == "guided_regex"
    assert "too complex" in vast.message
    assert refused(extra_body={"structured_outputs": {"grammar": "start: nothing"}}).param == "structured_outputs"
    assert refused(tool_choice="required").param == "tool_choice"
    # Rules that leave no token are the client's too.
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body={"structured_outputs": {"choice": ["yes"]}, "min_tokens": 50})
    assert caught.value.code == "no_token_left"
    assert "min_tokens and the grammar" in caught.value.message
    assert "bad_words" not in caught.value.message
    # A free model is only told of its functions.
    assert chat(client, tools=[odd], max_tokens=4).choices[0].finish_reason in ("length", "stop")


def test_the_page_shows_what_works(client: openai.OpenAI, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "openai.md").read_text()
    *_, example = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    exec(example, {"client": client})
    called, said = capsys.readouterr().out.split("\n", 1)
    assert re.fullmatch(r"get_weather \{'city': '(Lima|Cusco)'(, 'days': [1-7])?\}", called)
    assert said.strip()


def test_grpc_has_calls_and_constraints(stack: Stack) -> None:
    functions = [
        gateway_pb2.Tool(name=one["function"]["name"], parameters_json_schema=json.dumps(one["function"]["parameters"]))
        for one in TOOLS
    ]
    user = gateway_pb2.ChatMessage(role="user", content=USER[0]["content"])
    options = gateway_pb2.GenerateOptions(seed=3, n=2, max_tokens=1000, logit_bias={END_ID: 12})
    request = gateway_pb2.ChatRequest(messages=[user], tools=functions, options=options)
    request.tool_choice.mode = gateway_pb2.TOOL_CHOICE_MODE_REQUIRED
    with grpc.insecure_channel(stack.gateway.address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        answers = list(stub.Chat(request))
        request.tool_choice.function = "look_up"
        named = list(stub.Chat(request))
        request.ClearField("tool_choice")
        request.options.response_format.choice.texts.extend(["yes", "no"])
        request.ClearField("tools")
        chosen = list(stub.Chat(request))
        request.options.response_format.json_schema = "{"
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Chat(request))
    for index in range(2):
        calls = [call for answer in answers if answer.index == index for call in answer.tool_calls]
        assert calls
        for call in calls:
            ARGUMENTS[call.name].model_validate_json(call.arguments_json)
        ends = [answer.finish_reason for answer in answers if answer.index == index and answer.finish_reason]
        assert ends == [gateway_pb2.FINISH_REASON_TOOL_CALLS]
        assert {call.name for answer in named for call in answer.tool_calls} == {"look_up"}
        assert "".join(answer.content for answer in chosen if answer.index == index) in ("yes", "no")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "options.response_format" in (caught.value.details() or "")
