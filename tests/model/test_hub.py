"""Models by hub id, from a hub on this machine: the HTTP calls of huggingface_hub, answered from a folder."""

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_checkpoints import tiny_checkpoint

from model_worker.model import CheckpointError, UnsupportedModelError, load_model
from model_worker.model.hub import fetch

pytestmark = pytest.mark.model

COMMIT = "0" * 39 + "1"


class Hub(ThreadingHTTPServer):
    """Serves folders as repositories `owner/<folder name>`, with one revision, main."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.fetched: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            folder = self.server.root / parts[3]
            if not folder.is_dir():
                return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if parts[4] == "revision":
                known = parts[5] in ("main", COMMIT)
                body = {"id": f"owner/{parts[3]}", "sha": COMMIT, "siblings": []}
                return self._answer(
                    200 if known else 404, json.dumps(body).encode(), {"X-Error-Code": "RevisionNotFound"}
                )
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            return self._answer(200, json.dumps([_listed(path, folder) for path in files]).encode())
        content = (self.server.root / parts[1] / "/".join(parts[4:])).read_bytes()
        if self.command == "GET":
            self.server.fetched.append(parts[-1])
        return self._answer(200, content, {"ETag": hashlib.sha1(content).hexdigest(), "X-Repo-Commit": COMMIT})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _listed(path: Path, folder: Path) -> dict[str, object]:
    content = path.read_bytes()
    name, oid = str(path.relative_to(folder)), hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": oid}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    # CI forbids calls to a hub; this one is at home.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with Hub(tmp_path / "hub") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_model_comes_from_the_hub_once(hub: Hub, tmp_path: Path) -> None:
    """Only what is needed: no pickle, nothing from folders. Then without the hub, from the cache."""
    source = tiny_checkpoint("qwen2", hub.root / "tiny")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    (source / "original").mkdir()
    (source / "original" / "params.json").write_text("{}")
    folder = fetch("owner/tiny", None, hub.endpoint, tmp_path / "cache")
    assert load_model(folder).fingerprint == load_model(source).fingerprint
    assert sorted(hub.fetched) == ["config.json", "generation_config.json", "model.safetensors"]
    fetch("owner/tiny", None, hub.endpoint, tmp_path / "cache")
    assert len(hub.fetched) == 3
    hub.shutdown()
    hub.server_close()
    assert fetch("owner/tiny", None, hub.endpoint, tmp_path / "cache") == folder


def test_what_the_hub_does_not_have_is_named(hub: Hub, tmp_path: Path) -> None:
    tiny_checkpoint("qwen2", hub.root / "tiny")
    with pytest.raises(CheckpointError, match="owner/other is no file or folder here, and the hub has none"):
        fetch("owner/other", None, hub.endpoint, tmp_path / "cache")
    with pytest.raises(CheckpointError, match="owner/tiny on the hub has no revision v2"):
        fetch("owner/tiny", "v2", hub.endpoint, tmp_path / "cache")
    (hub.root / "words").mkdir()
    (hub.root / "words" / "README.md").write_text("no model")
    with pytest.raises(CheckpointError, match=r"owner/words on the hub has no config\.json"):
        fetch("owner/words", None, hub.endpoint, tmp_path / "cache")


def test_weights_of_a_refused_model_are_not_fetched(hub: Hub, tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen2", hub.root / "tiny")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(UnsupportedModelError, match="quantised by gptq"):
        fetch("owner/tiny", None, hub.endpoint, tmp_path / "cache")
    assert hub.fetched == ["config.json"]


def test_no_hub_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch("owner/tiny", None, "http://127.0.0.1:9", tmp_path)
    assert str(caught.value).startswith("no such model: owner/tiny is no file or folder here nor in the hub's cache")
    assert "\n" not in str(caught.value)


class SilentHub:
    """Takes connections and says nothing, as a network does that swallows packets."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.calls: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take)

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                self.calls.append(self._socket.accept()[0])

    def __enter__(self) -> "SilentHub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for call in self.calls:
            call.close()


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_a_hub_that_does_not_answer_is_asked_once(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    monkeypatch.setattr("model_worker.model.hub.ANSWER_SECONDS", 0.2)
    tiny_checkpoint("qwen2", hub.root / "tiny")
    with SilentHub() as silent:
        with pytest.raises(CheckpointError, match="nor in the hub's cache, and the hub cannot be reached"):
            fetch("owner/tiny", revision, silent.endpoint, tmp_path / "cache")
        assert len(silent.calls) == 1
        folder = fetch("owner/tiny", revision, hub.endpoint, tmp_path / "cache")
        assert fetch("owner/tiny", revision, silent.endpoint, tmp_path / "cache") == folder
        assert len(silent.calls) == 2
