"""When something is amiss, as the page in headless Chromium shows it: no key, a manager that dies and comes back."""

import hashlib
from pathlib import Path

import pytest
from chromium import Chromium
from inspected_page import expose
from processes import ServiceProcess
from silent_pool import LISTEN, attach, http_of, manager
from unclaimed_port import unclaimed_port

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(900)]

KEY = "boss-key-0123456789"
TROUBLE = "document.getElementById('status').classList.contains('trouble')"


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
    address = f"127.0.0.1:{unclaimed_port()}"
    with manager(address) as kv, ServiceProcess("gateway", *LISTEN, f"--inspect-managers={address}") as gateway:
        attach(address, 24)
        chromium.open(f"http://{http_of(gateway)}/inspect")
        expose(chromium)
        chromium.wait_for(f"page.model.pool !== null && !{TROUBLE}")
        kv.stop()
        chromium.wait_for(TROUBLE)
        with manager(address):
            attach(address, 40)
            chromium.wait_for("page.model.pool.numBlocks === 40 && page.trouble === ''")
            chromium.wait_for(f"!{TROUBLE}")
            chromium.wait_for("document.querySelector('#legend li').textContent.startsWith('free 40')")
