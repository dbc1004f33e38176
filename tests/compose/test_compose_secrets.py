"""Keys and certificates: deploy/compose.tls.yml and a folder of tenants, on a real engine.

The health checks speak TLS by the same variables as the services, or `up --wait` would not return.
"""

import hashlib
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_project import REPOSITORY, TEST_FILE, Project, wait_until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

KEY, OPERATOR = secrets.token_hex(32), secrets.token_hex(32)
# The gateway looks at its file every 2 s.
REVOKED_SECONDS = 10.0
# Prints the status of a call: by TLS or not, with the key or not.
CALL = """
import sys
import grpc
from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from service.channels import TlsFiles, open_channel
from pathlib import Path

by_tls, key = sys.argv[1] == "tls", sys.argv[2]
metadata = [("authorization", f"Bearer {key}")] if key else []
options = gateway_pb2.GenerateOptions(max_tokens=4)
with open_channel("gateway:50050", TlsFiles(ca=Path("/run/secrets/ca.pem")) if by_tls else None) as channel:
    gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
    request = gateway_pb2.GenerateRequest(prompt="Once", options=options)
    try:
        tokens = sum(len(answer.token_ids) for answer in gateway.Generate(request, metadata=metadata, timeout=30))
        print("OK", tokens)
    except grpc.RpcError as error:
        print(error.code().name)
"""


# Prints the status of the inspector's data, and with 200 the managers whose pools it shows.
LOOK = """
import json, ssl, sys, urllib.error, urllib.request

headers = {"authorization": f"Bearer {sys.argv[1]}"} if sys.argv[1] else {}
request = urllib.request.Request("https://gateway:8000/inspect/pools", headers=headers)
try:
    context = ssl.create_default_context(cafile="/run/secrets/ca.pem")
    with urllib.request.urlopen(request, timeout=30, context=context) as response:
        print(response.status, *(pool["manager"] for pool in json.load(response)["pools"] if pool["num_blocks"]))
except urllib.error.HTTPError as error:
    print(error.code)
"""


def write_tenants(folder: Path, key: str, operator: str) -> None:
    """A tenant and an operator, by a new file that is moved over whatever there is."""
    digests = [hashlib.sha256(one.encode()).hexdigest() for one in (key, operator)]
    text = '[tenants.assistant]\nkeys = ["{}"]\n[tenants.operators]\nkeys = ["{}"]\noperator = true\n'
    (folder / "next.toml").write_text(text.format(*digests))
    (folder / "next.toml").chmod(0o644)
    subprocess.run(["mv", folder / "next.toml", folder / "tenants.toml"], check=True)


@pytest.fixture
def guarded(engine: None, published: dict[str, str], open_folder: Path) -> Iterator[Project]:
    """The cpu profile with TLS everywhere, a tenant and an operator."""
    tls = open_folder / "tls"
    subprocess.run([REPOSITORY / "deploy" / "certificates.sh", tls], check=True)
    tenants = open_folder / "tenants"
    tenants.mkdir(mode=0o755)
    write_tenants(tenants, KEY, OPERATOR)
    file = open_folder / "compose.yml"
    file.write_text("services:\n  client:\n    secrets: [ca.pem]\n")
    environ = {**published, "OCTAVO_TLS": str(tls), "OCTAVO_TENANTS": str(tenants)}
    with Project(
        "octavo-secrets", ("docker-compose.yml", TEST_FILE, "deploy/compose.tls.yml", file), environ
    ) as project:
        project.compose("up", "--detach", "--no-build", "--wait")
        yield project


def look(project: Project, key: str) -> str:
    return project.run("client", "python", "-c", LOOK, key)


def call(project: Project, how: str, key: str) -> str:
    return project.run("client", "python", "-c", CALL, how, key)


def test_only_a_key_and_tls_get_text(guarded: Project) -> None:
    assert call(guarded, "tls", KEY) == "OK 4"
    assert call(guarded, "tls", "") == "UNAUTHENTICATED"
    assert call(guarded, "tls", secrets.token_hex(32)) == "UNAUTHENTICATED"
    assert call(guarded, "plain", KEY) == "UNAVAILABLE"

    # The inspector's page follows the manager over mutual TLS, for an operator alone.
    assert look(guarded, "") == "401"
    assert look(guarded, KEY) == "403"
    assert look(guarded, OPERATOR) == "200 kv_manager:50052"
    logs = guarded.logs_tail(1000)
    assert [key for key in (KEY, OPERATOR) if key in logs] == []


def test_a_key_is_revoked_by_another_file_moved_over_the_old_one(guarded: Project) -> None:
    assert call(guarded, "tls", KEY) == "OK 4"
    assert look(guarded, OPERATOR) == "200 kv_manager:50052"
    other = secrets.token_hex(32)
    write_tenants(Path(guarded.environ["OCTAVO_TENANTS"]), other, OPERATOR)
    wait_until(lambda: look(guarded, KEY) == "401", REVOKED_SECONDS, "401 for a key that is nobody's any more")
    assert call(guarded, "tls", KEY) == "UNAUTHENTICATED"
    assert call(guarded, "tls", other) == "OK 4"
    assert look(guarded, OPERATOR) == "200 kv_manager:50052"


def test_this_machine_reaches_what_is_published(guarded: Project) -> None:
    tls = Path(guarded.environ["OCTAVO_TLS"])
    operator = ["--tls-certificate", str(tls / "operator.pem"), "--tls-key", str(tls / "operator.key")]
    address = guarded.environ["OCTAVO_INSPECT_LISTEN"]
    command = [sys.executable, "-m", "cli", "check", "--address", address, "--tls-ca", str(tls / "ca.pem")]

    def check(*identity: str) -> tuple[int, str]:
        done = subprocess.run([*command, *identity], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    status, said = check(*operator)
    assert (status, "every invariant holds" in said) == (0, True), said
    # The manager lets nobody in without a certificate.
    status, said = check()
    assert status == 1, said
