"""The health check of the images against services that speak TLS, mutual or not."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from authority import Authority

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]


def probe(address: str, *flags: object, **variables: object) -> tuple[int, str]:
    """Exit status and what it says, in an environment with these variables of ours alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    environment |= {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-m", "service.probe", address, *map(str, flags)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stderr


def test_a_service_of_mutual_tls_is_asked_with_its_own_certificate(
    tmp_path: Path, start_worker: Callable[..., Any]
) -> None:
    # Not for 127.0.0.1, as certificates of services seldom are.
    authority = Authority(tmp_path, ("worker",), reached_by="DNS:worker.example")
    certificate, key = authority.files["worker"]
    worker = start_worker("--tls", str(authority.ca), str(certificate), str(key))
    own = {"OCTAVO_WORKER_TLS_CERTIFICATE": certificate, "OCTAVO_WORKER_TLS_KEY": key}
    assert probe(worker.address, **own) == (0, "")
    assert probe(worker.address, "--cert", certificate, "--key", key) == (0, "")
    # In plain text, without a certificate, and by a name that is not in the server's.
    assert probe(worker.address)[0] == 1
    assert probe(worker.address, "--tls")[0] == 1
    status, said = probe(worker.address, "--ca", authority.ca, "--cert", certificate, "--key", key)
    assert (status, "Hostname Verification" in said) == (1, True)


def test_a_named_authority_is_asked_for(tmp_path: Path, start_worker: Callable[..., Any]) -> None:
    (ours := tmp_path / "ours").mkdir()
    (theirs := tmp_path / "theirs").mkdir()
    authority, stranger = Authority(ours, ("worker", "probe")), Authority(theirs, ())
    worker = start_worker("--tls", str(authority.ca), *map(str, authority.files["worker"]))
    shown = ["--cert", authority.files["probe"][0], "--key", authority.files["probe"][1]]
    assert probe(worker.address, "--ca", authority.ca, *shown) == (0, "")
    assert probe(worker.address, "--ca", stranger.ca, *shown)[0] == 1


def test_a_port_without_tls_is_told_from_one_that_is_unhealthy(start_worker: Callable[..., Any]) -> None:
    worker = start_worker()
    assert probe(worker.address) == (0, "")
    status, said = probe(worker.address, "--tls")
    assert (status, "NOT_SERVING" in said) == (1, False)


def test_half_an_identity_is_refused() -> None:
    status, said = probe("127.0.0.1:1", "--cert", "only.pem")
    assert (status, said.splitlines()[-1].endswith("--cert and --key go together")) == (2, True)
