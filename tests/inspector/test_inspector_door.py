"""Who may look: the page is open and empty, its data is for operators; over HTTP, before a manager and no worker."""

import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from processes import ServiceProcess

from gateway.inspector.site import DATA

pytestmark = pytest.mark.e2e

KEYS = {"boss": "boss-key-0123456789", "plain": "plain-key-0123456789"}
SECONDS = 120.0
PAGE = sorted(file.name for file in (resources.files("gateway.inspector") / "page").iterdir())


@pytest.fixture(scope="module")
def manager() -> Iterator[str]:
    with ServiceProcess("kv_manager", "--listen=127.0.0.1:0", "--metrics=") as process:
        yield process.wait_ready().address


@pytest.fixture(scope="module")
def gateway(manager: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    tenants = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    rows = {"boss": "operator = true", "plain": ""}
    tenants.write_text(
        "\n".join(
            f'[tenants.{name}]\nkeys = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n{rows[name]}'
            for name, key in KEYS.items()
        )
    )
    flags = ("--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--workers=127.0.0.1:1", f"--tenants={tenants}")
    with ServiceProcess("gateway", *flags, f"--inspect-managers={manager}") as process:
        yield process


@pytest.fixture(scope="module")
def address(gateway: ServiceProcess) -> str:
    """host:port of its HTTP, from its log: without a worker it never is ready."""
    (line,) = gateway.wait_log("waiting for a worker")
    return str(json.loads(line)["http"])


def get(address: str, path: str, key: str = "") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    connection.request("GET", path, headers={"authorization": f"Bearer {KEYS[key]}"} if key else {})
    return connection.getresponse()


@pytest.mark.parametrize(("key", "status"), [("", 401), ("plain", 403), ("boss", 200)])
def test_the_page_says_by_its_status_whether_there_is_something_to_see(address: str, key: str, status: int) -> None:
    response = get(address, "/inspect", key)
    assert response.status == status
    assert response.headers["content-type"].startswith("text/html")
    assert b"<title>Octavo inspector</title>" in response.read()


@pytest.mark.parametrize("path", sorted(DATA))
def test_data_is_for_operators(address: str, path: str) -> None:
    assert get(address, path).status == 401
    refused = get(address, path, "plain")
    assert refused.status == 403
    assert json.loads(refused.read())["error"]["code"] == "operators_only"
    assert get(address, path, "boss").status in (200, 400, 403)  # 400: it names no pool; 403: no tokens are told


def test_an_operator_sees_what_managers_say(address: str, manager: str) -> None:
    document = json.loads(get(address, "/inspect/pools", "boss").read())
    assert document == {
        "pools": [{"manager": manager, "trouble": "no worker has attached a pool yet"}],
        "tokens": False,
    }
    refused = get(address, f"/inspect/watch?manager={manager}&pool=none", "boss")
    assert refused.status == 404
    assert json.loads(refused.read())["error"]["code"] == "pool_not_found"


@pytest.mark.parametrize("name", PAGE)
def test_every_part_of_the_page_is_strict_about_where_things_come_from(address: str, name: str) -> None:
    response = get(address, "/inspect" if name == "index.html" else f"/inspect/{name}")
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert response.headers["x-content-type-options"] == "nosniff"
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert response.headers["content-type"].split(";")[0] == kinds[Path(name).suffix]
    text = response.read().decode()
    for elsewhere in ("http://", "https://", "//cdn", "@import", "url("):
        assert elsewhere not in text.replace("http://www.w3.org/2000/svg", "")
    if name == "index.html":
        assert "style=" not in text
        assert "<script>" not in text
        assert re.search(r"\son\w+=", text) is None


def test_a_gateway_that_is_told_so_has_no_inspector(manager: str) -> None:
    flags = ("--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--workers=127.0.0.1:1", "--metrics=")
    with ServiceProcess("gateway", *flags, f"--inspect-managers={manager}", "--inspect=false") as process:
        (line,) = process.wait_log("waiting for a worker")
        at = str(json.loads(line)["http"])
        for path in ("/inspect", *DATA):
            assert get(at, path).status == 404
        assert get(at, "/livez").status == 200
