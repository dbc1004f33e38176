"""Keys and certificates as secrets: deploy/compose.tls.yml and a tenants file, on a real engine.

The health checks speak TLS by the same variables as the services, or `up --wait` would not return.
"""

import hashlib
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_project import TEST_FILE, Project

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

NAMES = ("kv_manager", "model_worker", "gateway")
KEY, OPERATOR = secrets.token_hex(32), secrets.token_hex(32)
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


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def certificates(folder: Path) -> None:
    """ca.pem, and NAME.pem and NAME.key for the DNS name NAME; readable by everybody, since it is a test's."""
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    openssl("req", "-x509", *new_key, "-keyout", ca_key, "-days", "1", "-subj", "/CN=ca", "-out", ca)
    for name in NAMES:
        certificate, key, asked, extension = (folder / f"{name}.{kind}" for kind in ("pem", "key", "csr", "cnf"))
        extension.write_text(f"subjectAltName=DNS:{name}\n")
        openssl("req", *new_key, "-keyout", key, "-subj", f"/CN={name}", "-out", asked)
        signer = ("-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-extfile", extension)
        openssl("x509", "-req", "-in", asked, *signer, "-days", "1", "-out", certificate)
        key.chmod(0o644)


@pytest.fixture
def guarded(engine: None, published: dict[str, str], open_folder: Path) -> Iterator[Project]:
    """The cpu profile with TLS everywhere, a tenant and an operator."""
    certificates(open_folder)
    tenants = open_folder / "tenants.toml"
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in (KEY, OPERATOR)]
    tenants.write_text(
        '[tenants.assistant]\nkeys = ["{}"]\n[tenants.operators]\nkeys = ["{}"]\noperator = true\n'.format(*digests)
    )
    file = open_folder / "compose.yml"
    file.write_text("services:\n  client:\n    secrets: [ca.pem]\n")
    environ = {**published, "OCTAVO_TLS": str(open_folder), "OCTAVO_TENANTS": str(tenants)}
    with Project(
        "octavo-secrets", ("docker-compose.yml", TEST_FILE, "deploy/compose.tls.yml", file), environ
    ) as project:
        project.compose("up", "--detach", "--no-build", "--wait")
        yield project


def test_only_a_key_and_tls_get_text(guarded: Project) -> None:
    def call(how: str, key: str) -> str:
        return guarded.run("client", "python", "-c", CALL, how, key)

    assert call("tls", KEY) == "OK 4"
    assert call("tls", "") == "UNAUTHENTICATED"
    assert call("tls", secrets.token_hex(32)) == "UNAUTHENTICATED"
    assert call("plain", KEY) == "UNAVAILABLE"

    def look(key: str) -> str:
        return guarded.run("client", "python", "-c", LOOK, key)

    # The inspector's page follows the manager over mutual TLS, for an operator alone.
    assert look("") == "401"
    assert look(KEY) == "403"
    assert look(OPERATOR) == "200 kv_manager:50052"
    logs = guarded.logs_tail(1000)
    assert [key for key in (KEY, OPERATOR) if key in logs] == []
