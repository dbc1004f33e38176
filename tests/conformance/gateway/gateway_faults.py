"""What a gateway may get wrong about operators and tool calls, each as an alteration of a right one's answers."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
from altered_gateway import Call, Refused, altering, nothing
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from http_calls import Http
from operator_calls import CALLS
from wire_errors import DETAILS

from octavo.gateway.v1 import gateway_pb2, operator_pb2

workers = partial(altering, "ListWorkers", operator_pb2.ListWorkersResponse)
tenants = partial(altering, "ListTenants", operator_pb2.ListTenantsResponse)
chat = partial(altering, "Chat", gateway_pb2.ChatResponse)


def each(name: str, field: str, value: Any) -> Callable[[Any], None]:
    """Sets a field of every element of a list."""

    def change(message: Any) -> None:
        for element in getattr(message, name):
            setattr(element, field, value)

    return change


def put(field: str, value: Any) -> Callable[[Any], None]:
    """Sets a field."""
    return lambda message: setattr(message, field, value)


# --- operators


def charge_the_operator(answer: operator_pb2.ListTenantsResponse) -> None:
    """What one tenant generates is told of another."""
    taken = sum(one.generated_tokens for one in answer.tenants)
    for one in answer.tenants:
        one.generated_tokens = taken if one.operator else 0


class OperatorForAll:
    """Takes callers for the operator: all of them, or those that show any key."""

    def __init__(self, key: str, *, strangers: bool) -> None:
        self._metadata = (("authorization", f"Bearer {key}"),)
        self._strangers = strangers

    def __call__(self, call: Call) -> Iterator[bytes]:
        known = self._strangers or any(name == "authorization" for name, _ in call.metadata)
        return call.pass_on(self._metadata if call.method in CALLS and known else call.metadata)


class Drains:
    """A drain as it should be but for one flaw, made here: the gateway behind is not drained, which would be for good.

    Args:
        flaw: forgets what runs, cuts what runs, goes on serving, stays healthy; empty for none.
    """

    def __init__(self, flaw: str = "") -> None:
        self._flaw = flaw
        self._drained = False
        self._running: set[Call] = set()

    def __call__(self, call: Call) -> Iterator[bytes]:
        match call.method:
            case "Drain":
                self._drained = True
                running = 0 if self._flaw == "forgets what runs" else len(self._running)
                yield operator_pb2.DrainResponse(running_calls=running).SerializeToString()
            case "Check" if self._drained and self._flaw != "stays healthy":
                not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
                yield health_pb2.HealthCheckResponse(status=not_serving).SerializeToString()
            case "Generate":
                yield from self._generate(call)
            case _:
                yield from nothing(call)

    def _generate(self, call: Call) -> Iterator[bytes]:
        if self._drained and self._flaw != "goes on serving":
            raise shutting_down()
        self._running.add(call)
        try:
            for data in nothing(call):
                if self._drained and self._flaw == "cuts what runs":
                    raise shutting_down()
                yield data
        finally:
            self._running.remove(call)


def shutting_down() -> Refused:
    """As a gateway refuses that drains."""
    code = grpc.StatusCode.UNAVAILABLE
    status = status_pb2.Status(code=code.value[0], message="draining")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="SHUTTING_DOWN"))
    return Refused(code, status.message, [(DETAILS, status.SerializeToString())])


# --- tool calls


def as_text(answer: gateway_pb2.ChatResponse) -> None:
    answer.content += "".join(call.arguments_json for call in answer.tool_calls)
    answer.ClearField("tool_calls")


def cut_arguments(answer: gateway_pb2.ChatResponse) -> None:
    for call in answer.tool_calls:
        call.arguments_json = call.arguments_json[:-1]


def call_twice(answer: gateway_pb2.ChatResponse) -> None:
    for call in list(answer.tool_calls):
        answer.tool_calls.add(id=f"{call.id}-again", name=call.name, arguments_json=call.arguments_json)


def say_stop(answer: gateway_pb2.ChatResponse) -> None:
    if answer.finish_reason == gateway_pb2.FINISH_REASON_TOOL_CALLS:
        answer.finish_reason = gateway_pb2.FINISH_REASON_STOP


def invent_a_call(answer: gateway_pb2.ChatResponse) -> None:
    if answer.finish_reason:
        answer.tool_calls.add(id="1", name="report", arguments_json='{"sunny": true, "city": "Lima"}')


# --- over HTTP


class AlteredHttp(Http):
    """Changes each answer, or each event of a stream."""

    def __init__(self, address: str, change: Callable[[Any], None]) -> None:
        super().__init__(address)
        self._change = change

    def json(self, path: str, body: Any = None, status: int = 200) -> Any:
        document = super().json(path, body, status)
        self._change(document)
        return document

    def events(self, path: str, body: Any) -> list[Any]:
        found = super().events(path, body)
        for event in found:
            self._change(event)
        return found


def lose_arguments(document: Any) -> None:
    """Of a stream: the message of a whole answer has its arguments."""
    for choice in document["choices"]:
        for call in choice.get("delta", {}).get("tool_calls", ()):
            call["function"]["arguments"] = call["function"].get("arguments", "")[1:]


def arguments_as_object(document: Any) -> None:
    """JSON where the API has a text of JSON."""
    for choice in document["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])


def say_stop_over_http(document: Any) -> None:
    for choice in document["choices"]:
        choice["finish_reason"] = choice["finish_reason"] and "stop"


def name_no_field(document: Any) -> None:
    document["error"]["param"] = None
