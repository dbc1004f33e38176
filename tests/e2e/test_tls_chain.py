"""Mutual TLS on every connection of the three services: text comes through, nobody without a certificate gets in."""

import json
import shutil
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from authority import Authority
from processes import Stack, running_stack

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import TlsFiles, open_channel

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]

NAMES = ("manager", "worker", "gateway", "client")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), NAMES)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), ("client",))


@pytest.fixture(scope="module")
def stack(demo_model: Path, authority: Authority) -> Iterator[Stack]:
    with running_stack(
        demo_model,
        manager_flags=authority.serve("manager", ca="tls-ca"),
        worker_flags={**authority.serve("worker"), **authority.reach("manager", "worker"), "num-blocks": 50},
        gateway_flags={
            **authority.serve("gateway"),
            **authority.reach("worker", "gateway"),
            "http-listen": "127.0.0.1:0",
        },
    ) as running:
        yield running


def generate(channel: grpc.Channel) -> str:
    options = gateway_pb2.GenerateOptions(max_tokens=4, ignore_eos=True)
    request = gateway_pb2.GenerateRequest(prompt="Once upon a time", options=options)
    return "".join(piece.text for piece in gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=60))


CALLS: dict[str, Callable[[grpc.Channel], Any]] = {
    "manager": lambda channel: kv_manager_pb2_grpc.KvManagerServiceStub(channel).ListPools(
        inspect_pb2.ListPoolsRequest(), timeout=60
    ),
    "worker": lambda channel: worker_pb2_grpc.WorkerServiceStub(channel).GetModel(
        worker_pb2.GetModelRequest(), timeout=60
    ),
    "gateway": generate,
}


def test_text_comes_through_three_encrypted_hops(stack: Stack, authority: Authority) -> None:
    with open_channel(stack.gateway.address, authority.identity("client")) as channel:
        assert generate(channel)


@pytest.mark.parametrize("service", sorted(CALLS))
def test_no_service_answers_who_shows_no_certificate_of_its_authority(
    stack: Stack, authority: Authority, stranger: Authority, service: str
) -> None:
    address = getattr(stack, service).address
    with open_channel(address, authority.identity("client")) as channel:
        assert CALLS[service](channel)
    # Plain text, a client without a certificate, and one whose certificate somebody else signed.
    foreign = TlsFiles(authority.ca, *stranger.files["client"])
    for identity in (None, TlsFiles(authority.ca), foreign):
        with open_channel(address, identity) as channel, pytest.raises(grpc.RpcError) as caught:
            CALLS[service](channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_http_demands_a_certificate_too(stack: Stack, authority: Authority, stranger: Authority) -> None:
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 4}).encode()
    url = f"https://{stack.gateway.ready['http']}/v1/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    for files in (authority.files["client"], stranger.files["client"], None):
        context = ssl.create_default_context(cafile=str(authority.ca))
        if files is not None:
            context.load_cert_chain(*files)
        if files is authority.files["client"]:
            with urllib.request.urlopen(request, timeout=60, context=context) as response:
                assert json.load(response)["usage"]["completion_tokens"] == 4
            continue
        with pytest.raises(OSError, match=r"(?i)certificate|alert|handshake|reset|EOF|closed|unknown ca"):
            urllib.request.urlopen(request, timeout=60, context=context).read()
