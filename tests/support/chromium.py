"""A headless Chromium, driven by ChromeDriver over the W3C WebDriver protocol: JSON over HTTP, no library needed.

tests/inspector/setup.sh installs both. Rendering is in software: there is no GPU here.
"""

import base64
import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

WAIT_SECONDS = 180.0
ANSWER_SECONDS = WAIT_SECONDS + 60.0
# What Chromium breaks requests off with, to loopback as well, when a network interface of the machine comes or goes, as
# those of containers do. No flag turns it off; the page reads its stream anew.
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    # Nothing outside this machine is asked for.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    # The machine's shared memory may be small.
    "--disable-dev-shm-usage",
)
# Keys as WebDriver names them.
KEYS = {
    "Escape": "\ue00c",
    "Enter": "\ue007",
    "Tab": "\ue004",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
}


class Chromium:
    """A browser with one window; a context manager that leaves no process behind."""

    def __init__(self, width: int = 1440, height: int = 960) -> None:
        missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
        assert not missing, f"{' and '.join(missing)} not found: run tests/inspector/setup.sh"
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "HOME": self._profile.name},
        )
        try:
            self._port = self._read_port()
            flags = [*FLAGS, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"]
            if os.geteuid() == 0:  # Chromium's sandbox refuses root
                flags.append("--no-sandbox")
            options = {"args": flags, "binary": shutil.which("chromium")}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
                "timeouts": {"script": round(1000 * WAIT_SECONDS)},
            }
            self._session = ""
            self._session = self._call("POST", "session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and its driver."""
        if getattr(self, "_session", ""):
            self._call("DELETE", f"session/{self._session}")
        self._driver.terminate()
        self._driver.wait(60)
        self._profile.cleanup()

    # --- what a person does

    def open(self, url: str) -> None:
        self._do("url", {"url": url})

    def press(self, *keys: str) -> None:
        """Keys one after another, by their names in ``KEYS`` or as characters."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a point of the window."""
        actions: list[dict[str, Any]] = [{"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}]
        if click:
            actions += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._act({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions})

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        middle = self.run(
            "const { x, y, width, height } = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [x + width / 2, y + height / 2];",
            selector,
        )
        self.point(*middle, click=True)

    # --- what a test asks

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body returns; a promise is awaited."""
        return self._do("execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, condition: str, *arguments: object) -> Any:
        """Look once per frame until an expression is true, and return it.

        Where the page draws in frames of its own, what made the expression true has been drawn: a frame's callbacks run
        in the order in which they were asked for, and the page's asks before it draws.
        """
        script = """
            const done = arguments[arguments.length - 1], given = Array.from(arguments).slice(0, -1);
            const look = () => {
              let found;
              try { found = (function () { return (CONDITION); }).apply(null, given); } catch (error) { found = false; }
              if (found) done(found); else requestAnimationFrame(look);
            };
            requestAnimationFrame(look);
        """
        body = {"script": script.replace("CONDITION", condition), "args": list(arguments)}
        try:
            return self._do("execute/async", body)
        except AssertionError as error:
            raise AssertionError(f"{error}: never true: {condition.strip()} {arguments or ''}") from None

    def text(self, selector: str) -> str:
        """The text of an element."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def screenshot(self, path: Path) -> None:
        """The window as a PNG file."""
        path.write_bytes(base64.b64decode(self._get("screenshot")))

    def prefer(self, **features: str) -> None:
        """What the page sees of the user's preferences: ``prefers_color_scheme="dark"``."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self._do("goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": named}})

    def complaints(self) -> list[str]:
        """What the console was told of errors and warnings since the last question, but for a changed network."""
        lines = self._do("se/log", {"type": "browser"})
        told = [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING")]
        return [message for message in told if NETWORK_CHANGED not in message]

    # --- the protocol

    def _act(self, source: Mapping[str, Any]) -> None:
        self._do("actions", {"actions": [source]})

    def _do(self, command: str, body: Mapping[str, Any]) -> Any:
        return self._call("POST", f"session/{self._session}/{command}", body)

    def _get(self, command: str) -> Any:
        return self._call("GET", f"session/{self._session}/{command}")

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, f"/{path}", None if body is None else json.dumps(body))
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{path.rpartition('/')[2]}: {answer['error']}: {answer['message'].splitlines()[0]}")
        return answer

    def _read_port(self) -> int:
        assert self._driver.stdout is not None
        said: Sequence[str] = []
        for line in self._driver.stdout:
            said = [*said, line]
            if found := re.search(r"started successfully on port (\d+)", line):
                return int(found[1])
        raise AssertionError(f"chromedriver ended: {''.join(said)}")
