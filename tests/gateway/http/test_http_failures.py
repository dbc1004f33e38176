"""A defect in the gateway itself: one answer without its details, one entry in the log with them."""

import asyncio
import contextlib
import json
import logging
from typing import Any

import pytest
from open_gate import open_gate

from gateway.http.app import application
from gateway.http.surface import Surface
from gateway.metrics import Metrics
from gateway.migration import MigrationPolicy, Migrations
from gateway.routing import Router
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.unit


def surface_of(router: Router) -> Surface:
    metrics = Metrics()
    migrations = Migrations(router, MigrationPolicy(), metrics.registry)
    return Surface(router, GatewaySettings(), metrics, migrations, open_gate())


class BrokenRouter(Router):
    def model(self, name: str) -> Any:
        raise ZeroDivisionError("a defect, with a secret")

    def models(self) -> Any:
        raise ZeroDivisionError("a defect, with a secret")


async def call(surface: Surface, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of one request to the application."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    sent: list[Any] = []
    bodies = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        return next(bodies, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    # The server that runs the application logs what a page raises.
    with contextlib.suppress(ZeroDivisionError):
        await application(surface)(scope, receive, send)
    start, *rest = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, json.loads(b"".join(message["body"] for message in rest))


async def test_a_defect_while_generating_is_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    surface = surface_of(BrokenRouter([]))
    with caplog.at_level(logging.ERROR):
        status, headers, answer = await call(surface, "POST", "/v1/completions", b'{"prompt": "x"}')
    assert (status, answer["error"]["type"], answer["error"]["code"]) == (500, "server_error", "internal")
    assert "secret" not in json.dumps(answer)
    assert headers["x-request-id"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    sample = {"method": "/v1/completions", "code": "INTERNAL"}
    assert surface.metrics.registry.get_sample_value("octavo_gateway_calls_total", sample) == 1


async def test_a_defect_of_a_page_is_500_without_details() -> None:
    surface = surface_of(BrokenRouter([]))
    status, headers, answer = await call(surface, "GET", "/v1/models")
    assert (status, answer["error"]["code"]) == (500, "internal")
    assert "secret" not in json.dumps(answer)
    assert headers["x-request-id"]


async def test_without_a_worker_models_are_none_and_generations_503() -> None:
    surface = surface_of(Router([]))
    assert (await call(surface, "GET", "/v1/models"))[2] == {"object": "list", "data": []}
    assert (await call(surface, "GET", "/health"))[0] == 503
    status, headers, answer = await call(surface, "POST", "/v1/completions", b'{"prompt": "x"}')
    assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "no_worker_ready", "1")
    surface.draining = True
    status, headers, answer = await call(surface, "POST", "/v1/completions", b'{"prompt": "x"}')
    assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "shutting_down", "1")
