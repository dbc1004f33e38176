"""When something is amiss: no key, a manager that dies and comes back, a gateway that is told to end."""

import hashlib
import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import successor_model
from chromium import Chromium
from inspected_stack import inspected_stack
from processes import ServiceProcess

from octavo.kv.v1 import attach_pb2, common_pb2, kv_manager_pb2_grpc, watch_pb2
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(240)]

KEY = "boss-key-0123456789"
LISTEN = ("--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--workers=127.0.0.1:1")
SECONDS = 60.0


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


def attach(address: str, num_blocks: int) -> None:
    """A pool whose worker says nothing."""
    spec = attach_pb2.PoolSpec(
        pool="pool",
        worker_id="w",
        num_blocks=num_blocks,
        block_size=4,
        reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
    )
    with open_channel(address) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)]), wait_for_ready=True, timeout=SECONDS)


def manager(listen: str = "127.0.0.1:0") -> ServiceProcess:
    return ServiceProcess("kv_manager", f"--listen={listen}", "--metrics=", "--lease-seconds=600").wait_ready()


def http_of(gateway: ServiceProcess) -> str:
    """host:port of its HTTP, from its log: without a worker it never is ready."""
    (line,) = gateway.wait_log("waiting for a worker")
    return str(json.loads(line)["http"])


def expose(browser: Chromium) -> None:
    browser.run("return import('/inspect/main.js').then(({ inspector }) => { window.page = inspector; })")


def test_the_page_asks_for_a_key_until_one_will_do(chromium: Chromium, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(f'[tenants.boss]\nkeys = ["{hashlib.sha256(KEY.encode()).hexdigest()}"]\noperator = true\n')
    known = f"--tenants={tenants}"
    with manager() as kv, ServiceProcess("gateway", *LISTEN, known, f"--inspect-managers={kv.address}") as gateway:
        attach(kv.address, 24)
        chromium.open(f"http://{http_of(gateway)}/inspect")
        for key, why in (("wrong", "an API key is needed"), (KEY, "the API key is nobody's")):
            chromium.wait_for(
                "document.getElementById('sign-in').open && "
                "document.getElementById('sign-in-why').textContent.includes(arguments[0])",
                why,
            )
            chromium.press(*key, "Enter")
        expose(chromium)
        chromium.wait_for("page.model.pool !== null && page.model.pool.numBlocks === 24")
        assert chromium.run("return localStorage.length + document.cookie.length") == 0


def test_the_page_comes_back_with_its_manager(chromium: Chromium) -> None:
    with manager() as kv, ServiceProcess("gateway", *LISTEN, f"--inspect-managers={kv.address}") as gateway:
        address = kv.address
        attach(address, 24)
        chromium.open(f"http://{http_of(gateway)}/inspect")
        expose(chromium)
        chromium.wait_for("page.model.pool !== null")
        kv.stop()
        chromium.wait_for("document.getElementById('status').classList.contains('trouble')")
        with manager(address):
            attach(address, 40)
            chromium.wait_for("page.model.pool.numBlocks === 40 && page.trouble === ''")
            chromium.wait_for("!document.getElementById('status').classList.contains('trouble')")
            assert chromium.text("#legend li").startswith("free 40")


def test_a_gateway_that_is_to_end_does_not_wait_for_who_looks() -> None:
    """A stream without end would hold it for the whole grace, a minute here."""
    with (
        manager() as kv,
        ServiceProcess("gateway", *LISTEN, f"--inspect-managers={kv.address}", "--grace-seconds=60") as gateway,
    ):
        attach(kv.address, 24)
        connection = http.client.HTTPConnection(http_of(gateway), timeout=SECONDS)
        connection.request("GET", f"/inspect/watch?manager={kv.address}&pool=pool")
        response = connection.getresponse()
        assert response.status == 200
        assert response.read1(1)
        gateway.signal(signal.SIGTERM)
        while response.read1(1 << 16):
            pass
        assert gateway.process.wait(30) == 0


def test_the_text_of_a_block_is_told_where_both_operators_allow_it(tmp_path: Path) -> None:
    """A block of 16 tokens: letters, a token each."""
    model = successor_model.write(tmp_path)
    with inspected_stack(
        model, num_blocks=64, manager=("--watch-token-ids=true",), gateway=("--inspect-tokens=true",)
    ) as stack:
        connection = http.client.HTTPConnection(stack.http, timeout=SECONDS)
        place = f"manager={stack.manager}&pool=default"
        connection.request("GET", f"/inspect/watch?{place}")
        stream = connection.getresponse()
        assert stream.read1(1)
        with stack.held(prompt="sixteen letters, and sixteen more", max_tokens=900, temperature=0):
            digests = digests_of(stack.manager)
            paths = [f"/inspect/tokens?{place}&digest={digest.hex()}" for digest in digests]
            deadline = time.monotonic() + SECONDS
            # The gateway follows digests by a Watch of its own, which may be behind ours.
            while "sixteen letters," not in (told := {get(stack.http, path)["text"] for path in paths}):
                assert time.monotonic() < deadline, told
        connection.close()


def digests_of(address: str) -> list[bytes]:
    """Those of the cache, from a watcher's snapshot, and from events until the prompt's are there."""
    with open_channel(address) as channel:
        call = kv_manager_pb2_grpc.KvManagerServiceStub(channel).Watch(watch_pb2.WatchRequest(pool="default"))
        found: list[bytes] = []
        for response in call:
            found += [*response.snapshot.digests, *response.stored.digests]
            if len(found) > 4:
                call.cancel()
                return found
    raise AssertionError("the stream ended")


def get(address: str, path: str) -> dict[str, object]:
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        document: dict[str, object] = json.loads(response.read())
        assert response.status == 200, document
        return document
    finally:
        connection.close()
