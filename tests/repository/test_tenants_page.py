"""The commands of docs/tenants.md in their order: a key is drawn, its digest written down, and it opens the gateway.

`...` stands for a model and for addresses; curl and grpcurl may be missing where tests run, and their calls are made
without them.
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from byte_model import byte_model
from shown_commands import Command, blocks, parsed, typed
from shown_serve import LISTENERS, serving

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="the page draws keys by openssl, which is not installed"
    ),
]

PAGE = "docs/tenants.md"
OCTAVO = str(Path(sys.executable).with_name("octavo"))
(BLOCK,) = [block for block in blocks(PAGE) if "openssl" in block.text]


def shown(*begin: str) -> Command:
    """The command of the block that begins so."""
    commands = [command for line in typed(BLOCK) for command in parsed(PAGE, line, fenced=True)]
    (found,) = [command for command in commands if tuple(command.words[: len(begin)]) == begin]
    return found


class Opened(NamedTuple):
    """The three services, and the key that opens them."""

    key: str
    grpc: str
    http: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants")


@pytest.fixture(scope="module")
def key(folder: Path) -> str:
    """Drawn and hashed as the page says; the digest is in tenants.toml."""
    drawn, hashed = [line for line in typed(BLOCK) if re.match(r"key=|printf", line)]
    script = f"{drawn}\n{hashed}\nprintf %s $key"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    digest, key = done.stdout.splitlines()
    assert len(bytes.fromhex(key)) == 32
    (folder / "tenants.toml").write_text(f'[tenants.someone]\nkeys = ["{digest.split()[0]}"]\n')
    return key


@pytest.fixture(scope="module")
def opened(folder: Path, key: str) -> Iterator[Opened]:
    command = shown("octavo", "serve")
    assert set(command.environ.values()) == {"tenants.toml"}
    model = byte_model(folder / "tiny", max_position_embeddings=512)
    flags = [*(f"--{name}=0" for name in LISTENERS), "--threads=1", "--num-blocks=64", f"--model={model}"]
    with serving([OCTAVO, *command.words[1:], *flags], folder, command.environ) as fields:
        yield Opened(key, fields["grpc"], fields["http"])


def test_the_key_opens_the_http_api(opened: Opened) -> None:
    _, flag, header, url = shown("curl").words
    assert flag == "-H"
    address = url.replace("127.0.0.1:8000", opened.http)
    name, value = header.replace("$key", opened.key).split(": ")
    with urllib.request.urlopen(urllib.request.Request(address, headers={name: value}), timeout=30) as response:
        assert response.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(address, timeout=30)


def test_the_key_opens_grpc(opened: Opened) -> None:
    _, flag, header, *_, method = shown("grpcurl").words
    assert (flag, method) == ("-H", "octavo.gateway.v1.GatewayService/ListModels")
    metadata = [tuple(header.replace("$key", opened.key).split(": "))]
    with grpc.insecure_channel(opened.grpc) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        assert len(stub.ListModels(gateway_pb2.ListModelsRequest(), metadata=metadata, timeout=30).models) == 1
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_key_opens_a_chat(opened: Opened) -> None:
    command = shown("octavo", "chat")
    environ = {name: value.replace("$key", opened.key) for name, value in command.environ.items()}
    arguments = [OCTAVO, *command.words[1:], "--max-tokens=4", f"--address={opened.grpc}"]

    def chat(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, env={**os.environ, **environ}, input="Hi\n", capture_output=True, text=True, check=False
        )

    assert chat(environ).returncode == 0
    assert chat({}).returncode == 1
