"""An address that cannot be listened on is told in one line of our own, whichever service wants it."""

import errno
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from unclaimed_port import unclaimed_port

from model_worker.metrics import serve_metrics
from service.listening import cannot_listen, check_free

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def taken() -> Iterator[str]:
    """An address on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.unit
def test_a_free_address_is_free_again_after_the_look() -> None:
    free = f"127.0.0.1:{unclaimed_port()}"
    for listen in (free, free, "127.0.0.1:0", "localhost:0", "[::1]:0" if socket.has_ipv6 else "127.0.0.1:0"):
        check_free(listen, "--listen")


@pytest.mark.unit
def test_what_is_wrong_with_an_address_is_said(taken: str) -> None:
    port = taken.rpartition(":")[2]
    for listen, reason in (
        (taken, "address already in use"),
        (f"0.0.0.0:{port}", "address already in use"),
        ("192.0.2.1:0", "cannot assign requested address"),  # of documentation: no machine has it
    ):
        with pytest.raises(OSError, match=f"^cannot listen on {listen}: {reason}; choose another --some-flag$"):
            check_free(listen, "--some-flag")
    for name in ("no.such.host.invalid:1", f"{'x' * 70}:1"):  # the second is none that could be asked for
        with pytest.raises(OSError, match=rf"^cannot listen on {name}: .+; choose another --some-flag$"):
            check_free(name, "--some-flag")


@pytest.mark.unit
def test_what_grpc_may_know_better_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemes of its own, and a machine whose kernel has no IPv6 while its addresses do."""
    for listen in ("ipv4:0.0.0.0:0", "ipv6:[::]:0"):
        check_free(listen, "--listen")

    def no_socket(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", no_socket)
    check_free("127.0.0.1:0", "--listen")


@pytest.mark.unit
def test_words_of_libraries_are_not_repeated() -> None:
    told = OSError(98, "error while attempting to bind on address ('127.0.0.1', 1): address already in use")
    assert str(cannot_listen("h:1", told, "--metrics")) == (
        "cannot listen on h:1: address already in use; choose another --metrics"
    )
    assert str(cannot_listen("h:1", OSError("odd"), "--f")) == "cannot listen on h:1: odd; choose another --f"


@pytest.mark.unit
def test_the_worker_says_it_of_its_metrics(taken: str) -> None:
    with pytest.raises(OSError, match=f"^cannot listen on {taken}: address already in use; choose another --metrics$"):
        serve_metrics(taken, None, None)  # type: ignore[arg-type]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("module", "more"),
    [("kv_manager", ["--metrics", ""]), ("gateway", ["--http-listen", ""])],
    ids=lambda one: str(one),
)
def test_a_service_says_it_in_one_line_and_grpc_says_nothing(module: str, more: Sequence[str], taken: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module, "--listen", taken, *more],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]  # whatever gRPC writes itself is no JSON
    said = f"cannot listen on {taken}: address already in use; choose another --listen"
    errors = [line for line in lines if line["level"] == "ERROR"]
    assert [(line["service"], line["message"].removeprefix("cannot start: ")) for line in errors] == [(module, said)]
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.e2e
def test_the_worker_looks_at_its_metrics_before_it_loads(taken: str, demo_model: Path) -> None:
    flags = {"--model": demo_model, "--listen": "127.0.0.1:0", "--metrics": taken, "--num-blocks": 2}
    command = [sys.executable, "-m", "model_worker", *(f"{name}={value}" for name, value in flags.items())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert [json.loads(line)["message"] for line in ended.stderr.splitlines()] == [
        f"cannot listen on {taken}: address already in use; choose another --metrics"
    ]
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.e2e
@pytest.mark.parametrize("what", ["--metrics", "--record"])
def test_the_manager_says_which_flag_it_cannot_follow(what: str, taken: str) -> None:
    value, said = {
        "--metrics": (taken, f"cannot listen on {taken}: address already in use; choose another --metrics"),
        "--record": ("/dev/null/x", "cannot record to /dev/null/x: not a directory; choose another --record"),
    }[what]
    flags = {"--listen": "127.0.0.1:0", "--metrics": "", what: value}
    command = [sys.executable, "-m", "kv_manager", *(f"{name}={value}" for name, value in flags.items())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert [json.loads(line)["message"] for line in ended.stderr.splitlines()] == [said]
    assert (ended.returncode, ended.stdout) == (1, "")
