"""Calls of a conversation in the templates of models that take arguments for an object, and for a text."""

import pytest

from gateway.http.conversation import messages_of
from gateway.messages import template_messages
from gateway.text.chat_template import ChatTemplate
from octavo.gateway.v1 import gateway_pb2

pytestmark = pytest.mark.unit

# As a model wrote it: neither the order nor the white space is json.dumps'.
WRITTEN = '{"b":"é","text": [1, true],"a":null}'


@pytest.mark.parametrize(
    ("expression", "rendered"),
    [
        ("arguments | tojson", '{"b": "é", "text": [1, true], "a": null}'),
        ("arguments | dictsort | first | first", "a"),
        ("arguments.text[0] + arguments.text | length", "3"),
        ("arguments is mapping", "True"),
        ("(arguments if arguments is string else arguments | tojson)[:6]", '{"b": '),
        ("'```json\\n' + arguments + '\\n```'", f"```json\n{WRITTEN}\n```"),
        ("arguments + ';'", f"{WRITTEN};"),
        ("'call ' ~ arguments", f"call {WRITTEN}"),
        ("arguments", WRITTEN),
        ("arguments | string | replace(' ', '')", WRITTEN.replace(" ", "")),
    ],
)
def test_arguments_are_an_object_and_a_text(expression: str, rendered: str) -> None:
    source = "{% set arguments = messages[0].tool_calls[0].function.arguments %}{{ " + expression + " }}"
    call = {"type": "function", "function": {"name": "f", "arguments": WRITTEN}}
    over_http = list(messages_of({"messages": [{"role": "assistant", "tool_calls": [call]}]}))
    message = gateway_pb2.ChatMessage(role="assistant")
    message.tool_calls.add(name="f", arguments_json=WRITTEN)
    over_grpc = list(template_messages([message]))
    template = ChatTemplate(source, {})
    assert template.render(over_http) == template.render(over_grpc) == rendered


def test_what_is_no_object_stays_what_it_is_and_nothing_is_an_empty_one() -> None:
    message = gateway_pb2.ChatMessage(role="assistant")
    for arguments in ("", "[1]", "7"):
        message.tool_calls.add(name="f", arguments_json=arguments)
    template = ChatTemplate("{% for call in messages[0].tool_calls %}{{ call.function.arguments }};{% endfor %}", {})
    assert template.render(list(template_messages([message]))) == "{};[1];7;"
