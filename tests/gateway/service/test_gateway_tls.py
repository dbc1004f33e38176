"""TLS on both sides of a real gateway: clients verify it, it and its worker verify each other."""

import asyncio
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from model_worker.registration import Announcer
from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc, registry_pb2, registry_pb2_grpc
from service.channels import TlsFiles, open_channel

TENANTS = Path(__file__).resolve().parents[3] / "deploy" / "tenants.example.toml"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]


def make_identity(folder: Path, name: str, reached_by: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
    """A key and a certificate of its own for 127.0.0.1; returns (certificate, key)."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={reached_by}"]
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", "req", "-x509", "-days", "1", *made, *names], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def identities(tmp_path: Path) -> dict[str, tuple[Path, Path]]:
    return {name: make_identity(tmp_path, name) for name in ("gateway", "worker", "stranger")}


def test_workers_of_a_name_are_verified_by_the_name(start_worker: Any, start_gateway: Any, tmp_path: Path) -> None:
    """No certificate knows the addresses that a lookup brings."""
    certificate, key = make_identity(tmp_path, "worker", reached_by="DNS:localhost")
    worker = start_worker("--tls", str(certificate), str(certificate), str(key))
    port = worker.address.rpartition(":")[2]
    files = ["--worker-ca", certificate, "--worker-certificate", certificate, "--worker-key", key]
    by_name = start_gateway(f"dns:///localhost:{port}", *map(str, files))
    by_name.wait_health(serving=True)
    by_address = start_gateway(worker.address, *map(str, files))
    by_address.wait_for(
        lambda event: "cannot be used" in event.get("message", "") and "Verification Check" in event["message"]
    )


async def test_gateways_of_a_name_are_verified_by_the_name(
    start_worker: Any, start_gateway: Any, tmp_path: Path
) -> None:
    certificate, key = make_identity(tmp_path, "gateway", reached_by="DNS:localhost")
    token = "operators-secret-token"
    own = ["--tls-certificate", certificate, "--tls-key", key]
    gateway = start_gateway("", "--registration-token", token, *map(str, own))
    name = f"dns:///localhost:{gateway.address.rpartition(':')[2]}"
    announcer = Announcer([name], start_worker().address, "x", token, TlsFiles(certificate))
    announcing = asyncio.create_task(announcer.run())
    await asyncio.to_thread(gateway.wait_event, "ready")
    announcing.cancel()
    await announcer.leave()


async def test_a_worker_announces_itself_when_the_certificates_that_were_being_replaced_are_there(
    start_worker: Callable[..., Any],
    start_gateway: Callable[..., Any],
    identities: dict[str, tuple[Path, Path]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    token, (certificate, key) = "a-token-of-the-operator", identities["gateway"]
    own = ["--tls-certificate", certificate, "--tls-key", key]
    gateway = start_gateway("", "--registration-token", token, *map(str, own))
    announcer = Announcer([gateway.address], start_worker().address, "x", token, TlsFiles(certificate))
    whole = certificate.read_bytes()
    certificate.write_bytes(whole[: len(whole) // 2])
    announcing = asyncio.create_task(announcer.run())
    while "cannot be called" not in caplog.text:
        assert not announcing.done()
        await asyncio.sleep(0)
    certificate.write_bytes(whole)
    await asyncio.to_thread(gateway.wait_event, "ready")
    announcing.cancel()
    await announcer.leave()


def test_text_streams_over_tls_end_to_end(
    start_worker: Callable[..., Any],
    start_gateway: Callable[..., Any],
    identities: dict[str, tuple[Path, Path]],
) -> None:
    (certificate, key), (worker_certificate, worker_key) = identities["gateway"], identities["worker"]
    # Self-signed, so each certificate is also the CA that the other side trusts.
    worker = start_worker("--tls", str(certificate), str(worker_certificate), str(worker_key))
    towards_worker = ["--worker-ca", worker_certificate, "--worker-certificate", certificate, "--worker-key", key]
    gateway = start_gateway(
        worker.address, "--tls-certificate", str(certificate), "--tls-key", str(key), *map(str, towards_worker)
    )
    gateway.wait_event("ready")
    request = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(max_tokens=3))
    with open_channel(gateway.address, TlsFiles(ca=certificate)) as channel:
        stream = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=30)
        assert "".join(response.text for response in stream) == "abc"
    for untrusted in (None, TlsFiles(ca=identities["stranger"][0])):
        with open_channel(gateway.address, untrusted) as channel, pytest.raises(grpc.RpcError) as caught:
            list(gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=30))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_gateway_without_a_certificate_is_told_why_its_worker_is_unusable(
    start_worker: Callable[..., Any],
    start_gateway: Callable[..., Any],
    identities: dict[str, tuple[Path, Path]],
) -> None:
    worker_certificate, worker_key = identities["worker"]
    worker = start_worker("--tls", str(identities["gateway"][0]), str(worker_certificate), str(worker_key))
    gateway = start_gateway(worker.address, "--worker-ca", str(worker_certificate))
    log = gateway.wait_for(lambda event: "cannot be used" in str(event.get("message")))
    assert f"worker {worker.address} cannot be used: " in log["message"]


async def test_a_worker_announces_itself_by_certificate_and_token(
    start_worker: Callable[..., Any],
    start_gateway: Callable[..., Any],
    identities: dict[str, tuple[Path, Path]],
) -> None:
    """It needs no tenant's key, where all others do."""
    (certificate, key), (worker_certificate, worker_key) = identities["gateway"], identities["worker"]
    token = "operators-secret-token"
    own = ["--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", worker_certificate]
    worker = start_worker()
    gateway = start_gateway("", "--registration-token", token, "--tenants", str(TENANTS), *map(str, own))
    announcer = Announcer(
        [gateway.address], worker.address, "x", token, TlsFiles(certificate, worker_certificate, worker_key)
    )
    announcing = asyncio.create_task(announcer.run())
    await asyncio.to_thread(gateway.wait_event, "ready")
    announcing.cancel()
    await announcer.leave()
    request = registry_pb2.RegisterRequest(address="w:1")
    with open_channel(gateway.address, TlsFiles(certificate, *identities["stranger"])) as channel:
        registry = registry_pb2_grpc.RegistryServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            registry.Register(request, timeout=30, metadata=(("authorization", f"Bearer {token}"),))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("shown", "outcome"), [("gateway", "answered"), ("stranger", "silent")])
def test_a_manager_of_mutual_tls_says_what_is_cached_to_whom_it_knows(
    start_worker: Callable[..., Any],
    start_manager: Callable[..., Any],
    start_gateway: Callable[..., Any],
    identities: dict[str, tuple[Path, Path]],
    shown: str,
    outcome: str,
) -> None:
    (certificate, key), (manager_certificate, manager_key) = identities[shown], identities["worker"]
    serve = {"tls-certificate": manager_certificate, "tls-key": manager_key, "tls-ca": identities["gateway"][0]}
    reach = {"manager-ca": manager_certificate, "manager-certificate": certificate, "manager-key": key}
    manager = start_manager(*(f"--{name}={path}" for name, path in serve.items()))
    # Of one worker nothing is asked.
    workers = f"{start_worker().address},{start_worker().address}"
    lookups = ["--managers", manager.address, "--routing-lookup-seconds", "10"]
    gateway = start_gateway(workers, *lookups, *(f"--{name}={path}" for name, path in reach.items()))
    page = gateway.wait_event("ready")["http"]
    wait_for_both(gateway)
    request = gateway_pb2.GenerateRequest(prompt="abc", options=gateway_pb2.GenerateOptions(max_tokens=3))
    assert "".join(response.text for response in gateway.stub.Generate(request, timeout=60)) == "abc"
    with urllib.request.urlopen(f"http://{page}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("octavo_gateway_lookups_total")]
    assert [line for line in counted if not line.endswith(" 0.0")] == [
        f'octavo_gateway_lookups_total{{outcome="{outcome}"}} 1.0'
    ]


def wait_for_both(gateway: Any) -> None:
    """Until both of its workers are ready."""
    while gateway.stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=30).models[0].ready_workers < 2:
        gateway.wait_for(lambda event: "is ready" in str(event.get("message")))
