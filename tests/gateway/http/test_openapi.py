"""The description of the HTTP surface is what the surface does: every path and field, whatever is thrown at it.

schemathesis makes requests of the description, right ones and wrong ones, and holds each answer against it.
"""

import json
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from fuzzing import fuzzing
from hypothesis import given, settings
from hypothesis import strategies as st
from open_gate import open_gate
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from gateway.http import fields, formats, openapi
from gateway.http.app import routes
from gateway.http.openapi_bodies import body_of, schema_of
from gateway.http.surface import Surface
from gateway.metrics import Metrics
from gateway.migration import MigrationPolicy, Migrations
from gateway.parameter_kinds import Choice, Functions, Language
from gateway.parameters import TABLE, Call
from gateway.routing import Router
from gateway.settings import GatewaySettings

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
EXAMPLES = {"ci": 10, "soak": 400}


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Any]:
    """A gateway whose answers are short: the whole context holds 48 tokens."""
    processes = sys.modules["gateway_processes"]
    worker = processes.Child([str(processes.HERE / "toy_worker.py"), "--max-context", "48"])
    worker.address = str(worker.wait_event("ready")["grpc"])
    gateway = processes.Gateway(["--workers", worker.address])
    gateway.http = f"http://{gateway.wait_event('ready')['http']}"
    yield gateway
    gateway.end()
    worker.end()


@pytest.fixture(scope="module")
def described(fuzzed: Any) -> Any:
    with urllib.request.urlopen(f"{fuzzed.http}{openapi.PATH}", timeout=30) as response:
        assert response.headers["content-type"] == "application/json"
        return json.load(response)


@pytest.mark.e2e
def test_every_operation_answers_as_described(fuzzed: Any, described: Any) -> None:
    fuzz(described, fuzzed, EXAMPLES["ci"])


@pytest.mark.soak
def test_every_operation_answers_as_described_for_long(fuzzed: Any, described: Any) -> None:
    fuzz(described, fuzzed, EXAMPLES["soak"])


def fuzz(described: Any, gateway: Any, examples: int) -> None:
    """Each operation gets ``examples`` right requests and as many wrong ones."""
    schema = schemathesis.openapi.from_dict(described)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == 8
    for operation in operations:
        # Only what takes something can be given something wrong.
        modes = [GenerationMode.POSITIVE, *[GenerationMode.NEGATIVE] * bool(operation.body)]
        for mode in modes:
            run(operation.as_strategy(generation_mode=mode), gateway, examples if operation.body else 2)
    assert gateway.process.poll() is None


def run(cases: Any, gateway: Any, examples: int) -> None:
    @fuzzing(examples)
    @given(case=cases)
    def every(case: Case) -> None:
        case.call_and_validate(base_url=gateway.http, checks=CHECKS, timeout=60)

    every()


@pytest.mark.unit
async def test_every_path_that_is_served_is_described() -> None:
    router, metrics = Router(()), Metrics()
    migrations = Migrations(router, MigrationPolicy(), metrics.registry)
    surface = Surface(router, GatewaySettings(), metrics, migrations, open_gate())
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in routes(surface)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = openapi.description("1")["paths"]
    assert {(path, method) for path, methods in described.items() for method in methods} == served


@pytest.mark.unit
@pytest.mark.parametrize("call", [Call.GENERATE, Call.CHAT])
def test_every_field_is_described_and_no_other(call: Call) -> None:
    body = body_of(call)
    assert body["properties"].keys() == fields.known(call)
    assert body["additionalProperties"] is False
    # null stands for absent, for all but the prompt.
    (prompt,) = body["required"]
    for name, schema in body["properties"].items():
        assert jsonschema_rs.is_valid(schema, None) is (name != prompt), name


@pytest.mark.unit
@pytest.mark.parametrize(
    "one", [{"json": {}}, {"json_object": True}, {"regex": "a"}, {"choice": ["a"]}, {"grammar": 'start: "a"'}]
)
def test_every_structure_that_is_served_is_described(one: dict[str, Any]) -> None:
    assert formats.format_of({formats.STRUCTURED: one}) is not None
    assert jsonschema_rs.is_valid(body_of(Call.GENERATE)["properties"][formats.STRUCTURED], one)


OF_KINDS = [row.kind for row in TABLE if not isinstance(row.kind, Language | Functions | Choice)]
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | st.text(max_size=3)
    | st.sampled_from(["x" * 128, "x" * 129, "x" * 1024, "x" * 1025])
    | st.lists(st.integers(-2, 9) | st.text(max_size=2), max_size=3)
    | st.lists(st.just("x") | st.just(1), min_size=16, max_size=17)
    | st.dictionaries(st.integers(0, 9).map(str) | st.text(max_size=2), st.integers(-101, 101), max_size=2)
)


@pytest.mark.property
@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(OF_KINDS), value=VALUES)
def test_a_schema_takes_what_its_kind_takes(kind: Any, value: Any) -> None:
    # JSON names the keys of an object by text, the table by number.
    is_object = isinstance(value, dict)
    told = {int(key): one for key, one in value.items()} if is_object and all(map(_is_id, value)) else value
    takes = not list(kind.problems(told, vocab_size=258))
    assert jsonschema_rs.is_valid(schema_of(kind), value) is takes


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdecimal()
