"""Slow readers, drains, TLS and addresses of the HTTP surface, each with processes of its own."""

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from gateway_http import Http, post_of, read_answer

pytestmark = pytest.mark.e2e

COMPLETIONS = "/v1/completions"
ENDLESS = {"prompt": "abc", "max_tokens": 1_000_000, "ignore_eos": True, "stream": True}


def started(start_gateway: Any, worker: Any, *arguments: str) -> tuple[Any, Http]:
    gateway = start_gateway(worker.address, *arguments)
    return gateway, Http(gateway.wait_event("ready")["http"])


def test_a_slow_reader_holds_the_worker_back(start_worker: Any, start_gateway: Any) -> None:
    # An event takes 210 bytes. Between worker and gateway: 64 KiB of messages of 8 bytes and about 1,000 in write
    # buffers, as over gRPC; then 64 KiB in the server, 64 KiB unsent in the kernel and the client's small window: 9,900
    # tokens. Without the bound on what the kernel takes it would be 2.5 MB more, which are another 12,000.
    worker = start_worker()
    _, http = started(start_gateway, worker)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(http.address)
        slow.sendall(post_of(COMPLETIONS, json.dumps(ENDLESS).encode(), x_request_id="slow"))
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        # Others are served meanwhile, beyond what the slow one got.
        other = http.post(COMPLETIONS, {**ENDLESS, "max_tokens": 15_000, "stream": False})
        assert other.json["usage"]["completion_tokens"] == 15_000
    ended = worker.wait_for(lambda event: event.get("event") == "ended" and event["request_id"].startswith("slow"))
    assert (ended["how"], ended["sent"] < 12_000) == ("cancelled", True), ended


def test_sigterm_lets_streams_finish_and_ends_what_outlives_the_grace(start_worker: Any, start_gateway: Any) -> None:
    """B91, over HTTP."""
    worker = start_worker("--token-seconds", "0.01")
    gateway, http = started(start_gateway, worker, "--grace-seconds", "4")
    # 50 tokens of 10 ms end within the 4 s; a million do not.
    short = http.open(COMPLETIONS, {**ENDLESS, "max_tokens": 50})
    long = http.open(COMPLETIONS, ENDLESS)
    silent = http.open(COMPLETIONS, {**ENDLESS, "stream": False})
    for _ in range(3):
        worker.wait_event("request")
    gateway.signal(signal.SIGTERM)
    gateway.wait_for(lambda event: "draining" in str(event.get("message", "")))
    events = read_answer(short).events
    assert (len(events), events[-1]["choices"][0]["finish_reason"]) == (50, "length")
    # The status is out: an event says what happened, and nothing says that the answer is done.
    last, rest = read_answer(long).body.decode().split("\n\n")[-2:]
    assert (json.loads(last.removeprefix("data: "))["error"]["code"], rest) == ("shutting_down", "")
    refused = read_answer(silent)
    assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "shutting_down", "1")
    assert gateway.process.wait(60) == 0
    for connection in (short, long, silent):
        connection.close()
    with pytest.raises(ConnectionRefusedError):
        http.connect()


def test_health_follows_the_worker(start_worker: Any, start_gateway: Any) -> None:
    """B73, over HTTP."""
    worker = start_worker()
    gateway, http = started(start_gateway, worker)
    assert http.get("/health").status == 200
    # The toy's switch: it answers that it is not ready, which the gateway sees within a second.
    worker.signal(signal.SIGUSR1)
    gateway.wait_health(serving=False)
    assert (http.get("/health").status, http.get("/livez").status) == (503, 200)
    refused = http.post(COMPLETIONS, {"prompt": "abc"})
    assert (refused.status, refused.error["type"], refused.headers["retry-after"]) == (503, "server_error", "1")
    worker.signal(signal.SIGUSR1)
    gateway.wait_health(serving=True)
    assert http.get("/health").status == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_tls_holds_for_http_too(start_worker: Any, start_gateway: Any, tmp_path: Path) -> None:
    certificate, key = tmp_path / "gateway.pem", tmp_path / "gateway.key"
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate]
    names = ["-subj", "/CN=gateway", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", "-days", "1", *made, *names], check=True, capture_output=True)
    # Self-signed, so it is also the CA of the one client that is let in.
    files = ["--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", certificate]
    _, http = started(start_gateway, start_worker(), *map(str, files))
    url = f"https://{http.address[0]}:{http.address[1]}/health"
    context = ssl.create_default_context(cafile=str(certificate))
    with pytest.raises(OSError, match=r"(?i)certificate required|handshake|reset|EOF|closed"):
        urllib.request.urlopen(url, timeout=60, context=context).read()
    context.load_cert_chain(certificate, key)
    with urllib.request.urlopen(url, timeout=60, context=context) as response:
        assert response.status == 200
    # Plain text is no way in.
    with http.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n")
        assert not connection.recv(100).startswith(b"HTTP/1.1 200")


def test_an_address_that_is_taken_is_named_and_an_empty_one_is_none(start_worker: Any, start_gateway: Any) -> None:
    _, http = started(start_gateway, start_worker())
    taken = f"{http.address[0]}:{http.address[1]}"
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "--listen", "127.0.0.1:0", "--http-listen", taken],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"cannot listen on {taken}: address already in use; choose another --http-listen" in ended.stderr
    assert "Traceback" not in ended.stderr
    off = start_gateway("127.0.0.1:1", "--http-listen", "")
    assert off.seen[-1]["http"] is None
