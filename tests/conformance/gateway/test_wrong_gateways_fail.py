"""The suite's own test: a gateway that gets one thing wrong about operators or tool calls fails the test of that thing.

Each fault stands between the suite and the gateway under test. Without one the same tests pass there, so it is the
fault that they fail by.
"""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import gateway_faults as faults
import grpc
import pytest
import test_any_gateway_operators as operators
import test_any_gateway_tools as tools
from altered_gateway import AlteredGateway, Fault, answering, nothing, unexplained
from gateway_faults import AlteredHttp, chat, each, put, tenants, workers
from operator_calls import Caller
from text_calls import Client
from tool_calls import REQUIRED, Tooled

from octavo.gateway.v1 import operator_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.model]

Check = Callable[..., None]
# What a test ends with that fails; nothing that a broken relay would bring about.
FAILURES = (AssertionError, pytest.fail.Exception, ValueError)

CALL = partial(tools.test_a_call_that_is_required_is_made_whole, seed=0)
NAMED = partial(tools.test_the_function_that_is_named_is_called, name="look_up")
REFUSAL = partial(tools.test_what_is_wrong_with_tools_is_named, path="tool_choice", tools=[], choice=REQUIRED)
HTTP_CALL = partial(tools.test_http_makes_the_call_that_grpc_makes, choice="required", own=REQUIRED)
HTTP_REFUSAL = partial(tools.test_http_names_what_is_wrong_with_tools, wrong={"tools": []}, param="tool_choice")

LOAD = operators.test_a_workers_load_is_told_while_it_lasts
COUNTS = operators.test_what_everybody_takes_is_counted_for_one_tenant
TELLS_APART = operators.test_tenants_are_told_apart
DRAIN = operators.test_a_drain_refuses_what_is_new_and_cuts_nothing_off

# Of a gateway without tenants.
OPEN: dict[str, tuple[Fault, Check]] = {
    "hides what runs on a worker": (workers(each("workers", "samples", 0)), LOAD),
    "names another pool": (workers(each("workers", "pool", "x")), operators.test_a_worker_is_told_as_it_tells_itself),
    "counts no generated tokens": (tenants(each("tenants", "generated_tokens", 0)), COUNTS),
    "counts no calls under way": (tenants(each("tenants", "running_calls", 0)), COUNTS),
    "says that it drains for anybody": (
        answering("Drain", operator_pb2.DrainResponse()), operators.test_nobody_drains_where_nobody_is_known
    ),
    "calls by text": (chat(faults.as_text), CALL),
    "cuts arguments": (chat(faults.cut_arguments), CALL),
    "breaks the schema": (chat(each("tool_calls", "arguments_json", '{"sunny": 1, "city": "Rome"}')), CALL),
    "calls twice where once is allowed": (chat(faults.call_twice), CALL),
    "says stop at the end of a call": (chat(faults.say_stop), CALL),
    "calls another function": (chat(each("tool_calls", "name", "report")), NAMED),
    "gives every call one id": (chat(each("tool_calls", "id", "1")), tools.test_answers_have_calls_of_their_own),
    "calls where it may not": (chat(faults.invent_a_call), tools.test_no_call_is_made_where_none_is_allowed),
    "tells a call that was cut": (chat(faults.invent_a_call), tools.test_a_call_that_is_cut_is_none),
    "explains nothing": (unexplained, REFUSAL),
}  # fmt: skip
OVER_HTTP: dict[str, tuple[Callable[[Any], None], Check]] = {
    "loses a piece of arguments": (faults.lose_arguments, HTTP_CALL),
    "gives arguments as an object": (faults.arguments_as_object, HTTP_CALL),
    "says stop at the end of a call": (faults.say_stop_over_http, HTTP_CALL),
    "names no field": (faults.name_no_field, HTTP_REFUSAL),
}
# Of one with tenants: made of the operator's key.
GUARDED: dict[str, tuple[Callable[[str], Fault], Check]] = {
    "takes everybody for the operator": (
        lambda key: faults.OperatorForAll(key, strangers=True),
        partial(operators.test_only_operators_operate, method="ListWorkers"),
    ),
    "takes every tenant for the operator": (
        lambda key: faults.OperatorForAll(key, strangers=False),
        partial(operators.test_only_operators_operate, method="ListTenants"),
    ),
    "counts no strangers": (
        lambda _: tenants(put("unauthenticated_calls", 0)),
        partial(operators.test_only_operators_operate, method="Drain"),
    ),
    "charges another tenant": (lambda _: tenants(faults.charge_the_operator), TELLS_APART),
    "says nobody is an operator": (lambda _: tenants(each("tenants", "operator", False)), TELLS_APART),
    "does not say when to come again": (lambda _: unexplained, operators.test_a_limit_is_told_and_holds),
    "hides a worker's trouble": (
        lambda _: workers(each("workers", "trouble", "")),
        operators.test_a_worker_that_cannot_be_used_is_told_with_the_reason,
    ),
}
FLAWS = ("forgets what runs", "cuts what runs", "goes on serving", "stays healthy")


class Bench:
    """Runs a test of the suite on other fixtures than the suite's own."""

    def __init__(self, opened: ExitStack, **fixtures: Any) -> None:
        self._opened = opened
        self._fixtures = fixtures

    def run(self, check: Check, **others: Any) -> None:
        """A test, with fixtures of the same names."""
        known = {**self._fixtures, **others}
        wanted = [one.name for one in inspect.signature(check).parameters.values() if one.default is one.empty]
        check(**{name: known[name] for name in wanted})

    def open(self, target: str, fault: Fault) -> dict[str, Any]:
        """Fixtures of a gateway without tenants."""
        salt = self._fixtures["salt"]
        caller = self._caller(self._altered(target, fault))
        client = Client(caller.texts, self._fixtures["client"].model, salt)
        return {"caller": caller, "client": client, "own": client, "tooled": Tooled(client)}

    def guarded(self, target: Any, fault: Fault) -> dict[str, Any]:
        """Fixtures of one with tenants."""
        altered = target._replace(address=self._altered(target.address, fault))
        keys = {"operator": altered.operator_key, "tenant": altered.tenant_key}
        return {"guarded": altered, "leaving": altered} | {
            name: self._caller(altered.address, key) for name, key in keys.items()
        }

    def _altered(self, target: str, fault: Fault) -> str:
        return self._opened.enter_context(AlteredGateway(target, fault)).address

    def _caller(self, address: str, key: str = "") -> Caller:
        caller = Caller(address, key)
        self._opened.callback(caller.close)
        return caller


@pytest.fixture
def bench(client: Client, tooled: Tooled, salt: str, channel_to: Any, http: Any) -> Any:
    with ExitStack() as opened:
        yield Bench(opened, client=client, tooled=tooled, salt=salt, channel_to=channel_to, http=http)


def distinct(table: dict[str, tuple[Any, Check]]) -> list[Check]:
    return list(dict.fromkeys(check for _, check in table.values()))


@pytest.mark.parametrize("check", distinct(OPEN))
def test_what_is_passed_on_unaltered_passes(bench: Bench, channel_to: Any, check: Check) -> None:
    bench.run(check, **bench.open(channel_to.address("gateway"), nothing))


@pytest.mark.parametrize("check", distinct(GUARDED))
def test_what_is_passed_on_unaltered_passes_with_tenants(bench: Bench, guarded: Any, check: Check) -> None:
    bench.run(check, **bench.guarded(guarded, nothing))


def test_a_drain_without_a_flaw_passes(bench: Bench, guarded: Any) -> None:
    bench.run(DRAIN, **bench.guarded(guarded, faults.Drains()))


@pytest.mark.parametrize("says", OPEN)
def test_a_gateway_fails_that(bench: Bench, channel_to: Any, says: str) -> None:
    fault, check = OPEN[says]
    fixtures = bench.open(channel_to.address("gateway"), fault)
    with pytest.raises(FAILURES):
        bench.run(check, **fixtures)


@pytest.mark.parametrize("says", OVER_HTTP)
def test_a_gateway_fails_that_over_http(bench: Bench, channel_to: Any, says: str) -> None:
    change, check = OVER_HTTP[says]
    http = AlteredHttp(channel_to.address("gateway_http"), change)
    with pytest.raises(FAILURES):
        bench.run(check, http=http)


@pytest.mark.parametrize("says", GUARDED)
def test_a_gateway_with_tenants_fails_that(bench: Bench, guarded: Any, says: str) -> None:
    fault, check = GUARDED[says]
    fixtures = bench.guarded(guarded, fault(guarded.operator_key))
    with pytest.raises(FAILURES):
        bench.run(check, **fixtures)


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_gateway_fails_that_drains_and(bench: Bench, guarded: Any, flaw: str) -> None:
    fixtures = bench.guarded(guarded, faults.Drains(flaw))
    # A stream that is cut is an error of its own.
    with pytest.raises((*FAILURES, grpc.RpcError) if flaw == "cuts what runs" else FAILURES):
        bench.run(DRAIN, **fixtures)
