"""What a body says of its output becomes one grammar, over HTTP and over gRPC."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.grammars import MAX_CHOICES, Grammar
from gateway.http import fields, formats
from gateway.messages import given_parameters, spelled_for
from gateway.parameters import Call, validate
from octavo.gateway.v1 import gateway_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}}
WRAPPED = {"name": "size", "strict": True, "schema": SCHEMA}
STRICT = Grammar("json_schema", json.dumps({**SCHEMA, "additionalProperties": False}, ensure_ascii=False))
JSON = Grammar("json_schema", json.dumps(SCHEMA, ensure_ascii=False))
OBJECT = Grammar("json_object", "")
CHOICE = Grammar("lark", 'start: "yes" | "\\"no\\"\\n" | "é"')
CHOICES = ["yes", '"no"\n', "é"]


@pytest.mark.parametrize("call", [Call.CHAT, Call.GENERATE])
@pytest.mark.parametrize(
    ("document", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": SCHEMA}, JSON),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"response_format": {"type": "json_schema", "json_schema": WRAPPED}}, STRICT),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": None}}}, JSON),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, JSON),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JSON),
        ({"structured_outputs": {"json_object": True}}, OBJECT),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {"regex": "[a-f]+"}}, Grammar("regex", "[a-f]+")),
        ({"structured_outputs": {"choice": CHOICES}}, CHOICE),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar("lark", 'start: "a"')),
        ({"guided_json": json.dumps(SCHEMA)}, JSON),
        ({"guided_regex": "[a-f]+"}, Grammar("regex", "[a-f]+")),
        ({"guided_choice": CHOICES}, CHOICE),
        ({"guided_grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
    ],
)
def test_every_spelling_becomes_a_grammar(call: Call, document: dict[str, Any], grammar: Grammar | None) -> None:
    given = fields.read(call, document)
    assert validate(call, given.parameters, 100).response_format == grammar
    field = next(name for name, value in document.items() if value is not None)
    assert given.names == ({} if grammar is None else {"response_format": field})


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"xml": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": "yes"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object"),
        ({"guided_choice": ["a"] * (MAX_CHOICES + 1)}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": [1]}, "guided_json"),
        ({"guided_regex": 7}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_what_is_no_constraint_is_named(document: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields.read(Call.CHAT, document)
    assert list(caught.value.problems) == [named]
    assert named.partition(".")[0] in formats.FIELDS


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({"ignore_eos": True}, "ignore_eos"),
        ({"beam_width": 2}, "beam_width"),
        ({"guided_regex": ""}, "response_format"),
        ({"guided_regex": "a" * (512 * 1024 + 1)}, "response_format"),
    ],
)
def test_what_a_constraint_excludes_is_named(beside: dict[str, Any], named: str) -> None:
    given = fields.read(Call.CHAT, {"guided_regex": "a", **beside})
    with pytest.raises(InvalidRequest) as caught:
        validate(Call.CHAT, given.parameters, 100)
    assert list(caught.value.problems) == [named]


@pytest.mark.parametrize(
    ("wanted", "grammar"),
    [
        (gateway_pb2.ResponseFormat(), None),
        (gateway_pb2.ResponseFormat(json_object=False), None),
        (gateway_pb2.ResponseFormat(json_object=True), OBJECT),
        (gateway_pb2.ResponseFormat(json_schema="{}"), Grammar("json_schema", "{}")),
        (gateway_pb2.ResponseFormat(regex="a"), Grammar("regex", "a")),
        (gateway_pb2.ResponseFormat(lark="start: /a/"), Grammar("lark", "start: /a/")),
        (gateway_pb2.ResponseFormat(choice=gateway_pb2.Choice(texts=CHOICES)), CHOICE),
    ],
)
def test_grpc_has_them_too(wanted: gateway_pb2.ResponseFormat, grammar: Grammar | None) -> None:
    request = gateway_pb2.GenerateRequest(options=gateway_pb2.GenerateOptions(response_format=wanted))
    assert validate(Call.GENERATE, given_parameters(request), 100).response_format == grammar
    if grammar is not None and wanted.WhichOneof("kind") != "choice":
        kind = wanted.WhichOneof("kind")
        assert grammar.message().WhichOneof("kind") == kind
        assert getattr(grammar.message(), kind) == getattr(wanted, kind)


def test_grpc_names_its_own_field() -> None:
    wanted = gateway_pb2.ResponseFormat(choice=gateway_pb2.Choice())
    request = gateway_pb2.ChatRequest(options=gateway_pb2.GenerateOptions(response_format=wanted))
    with pytest.raises(ServiceError) as caught, spelled_for(request):
        given_parameters(request)
    assert list(caught.value.fields) == ["options.response_format.choice.texts"]
