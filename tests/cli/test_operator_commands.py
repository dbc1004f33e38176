"""What operators ask of services on the command line, of three real ones with tenants and TLS between all of them.

The last two tests drain the gateway and the worker, which holds for good.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from authority import Authority
from byte_model import byte_model
from processes import Stack, running_stack

from cli.calls import channel_to
from cli.failures import CliError
from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service.channels import TlsFiles, open_channel
from service.errors import error_info_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]

KEYS = {"alice": "key-of-alice-0123456789", "boss": "key-of-boss-0123456789"}
PER_MINUTE = 1_000_000
# Longer than any test runs, on any machine: the commands of each start a process a second.
LONG, BLOCK = 60_000, 16
TENANTS = "\n".join(
    f'[tenants.{name}]\nkeys = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n{row}'
    for (name, key), row in zip(KEYS.items(), (f"tokens_per_minute = {PER_MINUTE}", "operator = true"), strict=True)
)


class Shell:
    """Runs ``octavo`` as somebody who holds a key, a certificate, or neither."""

    def __init__(self, octavo: Any, stack: Stack, authority: Authority) -> None:
        self._octavo = octavo
        self._stack = stack
        self.authority = authority

    def __call__(self, *arguments: str, key: str = "", stdin: str = "", environ: dict[str, str] | None = None) -> Any:
        addresses = {
            "OCTAVO_ADDRESS": self._stack.gateway.address,
            "OCTAVO_WORKER_ADDRESS": self._stack.worker.address,
            "OCTAVO_MANAGER_ADDRESS": self._stack.manager.address,
            "OCTAVO_TLS_CA": str(self.authority.ca),
            "OCTAVO_API_KEY": KEYS.get(key, key),
        }
        return self._octavo(list(arguments), stdin, addresses | (environ or {}))

    def known(self, *arguments: str, key: str = "") -> Any:
        """With a certificate of the authority, which workers and the manager ask for."""
        certificate, own = self.authority.files["operator"]
        shown = {"OCTAVO_TLS_CERTIFICATE": str(certificate), "OCTAVO_TLS_KEY": str(own)}
        return self(*arguments, key=key, environ=shown)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), ("manager", "worker", "gateway", "operator"))


@pytest.fixture(scope="module")
def stack(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("operated")
    tenants = folder / "tenants.toml"
    tenants.write_text(TENANTS)
    model = byte_model(folder / "model", max_position_embeddings=LONG + BLOCK)
    gateway = authority.serve("gateway")
    with running_stack(
        model,
        manager_flags=authority.serve("manager", ca="tls-ca"),
        worker_flags={
            **authority.serve("worker"),
            **authority.reach("manager", "worker"),
            "num-blocks": LONG // BLOCK + 10,
            "block-size": BLOCK,
            "threads": 1,
            "served-name": "tiny",
            "pool": "p",
        },
        gateway_flags={
            # Clients show keys, no certificates.
            **{name: value for name, value in gateway.items() if name != "tls-client-ca"},
            **authority.reach("worker", "gateway"),
            "tenants": tenants,
        },
    ) as running:
        yield running


@contextmanager
def called_elsewhere(folder: Path) -> Iterator[tuple[str, TlsFiles]]:
    """A server on this machine whose certificate is for another name, and how its authority is known."""
    authority = Authority(folder, ("server",), reached_by="DNS:elsewhere")
    certificate, key = (path.read_bytes() for path in authority.files["server"])
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    server.start()
    yield f"127.0.0.1:{port}", TlsFiles(authority.ca)
    server.stop(None).wait()


@contextmanager
def long_stream(stack: Stack, authority: Authority, request_id: str = "") -> Iterator[Any]:
    """A stream of alice's through the gateway that has begun; it ends with the block."""
    options = gateway_pb2.GenerateOptions(max_tokens=LONG, ignore_eos=True)
    request = gateway_pb2.GenerateRequest(prompt="abc", options=options, request_id=request_id)
    with open_channel(stack.gateway.address, TlsFiles(authority.ca)) as channel:
        metadata = [("authorization", f"Bearer {KEYS['alice']}")]
        call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=280, metadata=metadata)
        next(call)
        yield call
        call.cancel()


@pytest.fixture
def shell(octavo: Any, stack: Stack, authority: Authority) -> Shell:
    return Shell(octavo, stack, authority)


def test_text_takes_a_key_and_an_authority(shell: Shell, tmp_path: Path) -> None:
    asked = ["generate", "hello", "--max-tokens", "4", "--ignore-eos", "--json"]
    done = shell(*asked, key="alice")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 4

    talk = shell("chat", "--max-tokens", "4", key="alice", stdin="hello\nagain\n")
    assert talk.returncode == 0
    assert talk.stderr.startswith("tiny at ")
    assert len(re.findall(r"\[\d+ prompt tokens, .*\]", talk.stderr)) == 2

    missing = shell(*asked)
    assert missing.returncode == 1
    assert "(MISSING_API_KEY): give --api-key, or OCTAVO_API_KEY" in missing.stderr
    wrong = shell(*asked, key="key-of-nobody-0123456789")
    assert wrong.stderr == "octavo: unauthenticated: the API key is nobody's (INVALID_API_KEY)\n"

    refused = shell(*asked, key="alice", environ={"OCTAVO_TLS_CA": str(Authority(tmp_path, ()).ca)})
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "its certificate is not by the authority that was named, see --tls-ca" in refused.stderr
    assert refused.stderr.count("\n") == 1, refused.stderr  # gRPC's core would say more
    half = shell(*asked, "--tls-key", str(tmp_path), key="alice")
    assert half.returncode == 2
    assert "--tls-certificate and --tls-key go together" in half.stderr


def test_what_is_wrong_with_tls_is_said(stack: Stack, authority: Authority, tmp_path: Path) -> None:
    _, key = authority.files["gateway"]
    with called_elsewhere(tmp_path) as elsewhere:
        for address, tls, advice in (
            (*elsewhere, "is for another name"),
            (stack.gateway.address, None, "as one does that wants TLS"),
            (stack.worker.address, TlsFiles(authority.ca), "wants TLS (--tls-ca) or a certificate"),
            (stack.gateway.address, TlsFiles(key), "is no certificate in PEM"),
            (
                stack.gateway.address,
                TlsFiles(tmp_path / "nowhere"),
                "nowhere, a file of TLS, cannot be read: no such file or directory",
            ),
        ):
            with pytest.raises(CliError) as caught, channel_to(address, "service", tls=tls) as channel:
                gateway_pb2_grpc.GatewayServiceStub(channel).ListModels(gateway_pb2.ListModelsRequest(), timeout=60)
            assert advice in str(caught.value), advice


def test_a_pool_is_looked_at_over_mutual_tls(shell: Shell) -> None:
    stranger = shell("check")
    assert stranger.returncode == 1
    assert "wants TLS (--tls-ca) or a certificate" in stranger.stderr
    looked = shell.known("inspect", "--json")
    assert json.loads(looked.stdout)["pool"]["summary"]["header"]["pool"] == "p"

    done = shell.known("check", "--json")
    (verdict,) = json.loads(done.stdout)
    assert (done.returncode, verdict["pool"], verdict["violations"]) == (0, "p", [])
    again = shell.known("check", "--pool", "p")
    assert again.returncode == 0
    assert re.fullmatch(
        r"pool 'p', step \d+: every invariant holds \(\d+\.\d{3} s, state [0-9a-f]{16}\)\n", again.stdout
    )


def test_a_cache_is_reset_once_and_not_while_it_is_used(shell: Shell, stack: Stack) -> None:
    # 40 tokens fill two blocks of 16.
    assert shell("generate", "y" * 40, "--max-tokens", "1", key="alice").returncode == 0
    done = shell.known("reset-cache", "--wait", "30")
    assert done.returncode == 0
    (cleared,) = [int(word) for word in done.stdout.split() if word.isdigit()]
    assert cleared >= 2
    assert json.loads(shell.known("reset-cache", "--all", "--json").stdout) == {"cleared_blocks": {"p": 0}}
    with long_stream(stack, shell.authority):
        used = shell.known("reset-cache")
        assert (used.returncode, used.stdout) == (1, "")
        assert "(CACHE_IN_USE)" in used.stderr
    both = shell.known("reset-cache", "--all", "--pool", "p")
    assert both.returncode == 2


def test_a_request_is_ended_by_its_name(shell: Shell, stack: Stack) -> None:
    with long_stream(stack, shell.authority, request_id="the-one") as stream:
        done = shell.known("abort", "the-one")
        assert (done.returncode, done.stdout) == (0, "ended\n")
        *_, last = stream
        assert last.finish_reason == gateway_pb2.FINISH_REASON_ABORTED
    gone = shell.known("abort", "the-one")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert f"no request 'the-one' runs or waits at the worker at {stack.worker.address}" in gone.stderr


def test_workers_and_tenants_are_listed_for_operators(shell: Shell, stack: Stack) -> None:
    refused = shell("workers", key="alice")
    assert refused.returncode == 1
    assert "(OPERATORS_ONLY): give --api-key of a tenant with operator = true" in refused.stderr

    with long_stream(stack, shell.authority):
        done = shell("workers", "--json", key="boss")
        tenants = json.loads(shell("tenants", "--json", key="boss").stdout)
    (worker,) = json.loads(done.stdout)["workers"]
    assert done.returncode == 0
    assert (worker["address"], worker["model"], worker["pool"]) == (stack.worker.address, "tiny", "p")
    assert (worker["trouble"], worker["samples"]) == ("", 1)
    alice, boss = tenants["tenants"]
    assert (alice["tenant"], alice["running_calls"], alice["tokens_per_minute"]) == ("alice", 1, PER_MINUTE)
    assert int(alice["prompt_tokens"]) > 0
    assert (boss["tenant"], boss["operator"], "tokens_left" in boss) == ("boss", True, False)

    # As told to people: tests/cli/test_gateway_lists.py.
    assert "calls without a key of any tenant: " in shell("tenants", key="boss").stdout


def test_a_drained_gateway_finishes_what_runs(shell: Shell, stack: Stack) -> None:
    with long_stream(stack, shell.authority) as stream:
        done = shell("drain", "gateway", "--json", key="boss")
        assert (done.returncode, json.loads(done.stdout)["running"]) == (0, 1)
        refused = shell("generate", "hello", key="alice")
        assert "octavo: unavailable: the gateway drains: it takes no new requests (SHUTTING_DOWN)" in refused.stderr
        impatient = shell("drain", "gateway", "--wait", "--timeout", "0.2", key="boss")
        assert impatient.returncode == 1
        assert "the wait is over with 1 call still running" in impatient.stderr
        next(stream)  # it was not cut
    waited = shell("drain", "gateway", "--wait", "--timeout", "60", key="boss")
    assert waited.returncode == 0
    assert waited.stdout.endswith("drains: nothing runs any more, it can be stopped\n")


def test_a_drained_worker_finishes_what_runs_and_gateways_leave_it_out(shell: Shell, stack: Stack) -> None:
    identity = shell.authority.identity("operator")
    with open_channel(stack.worker.address, identity) as channel:
        worker = worker_pb2_grpc.WorkerServiceStub(channel)
        request = worker_pb2.GenerateRequest(token_ids=[1, 2, 3])
        request.stop.max_tokens, request.stop.ignore_eos = LONG, True
        call = worker.Generate(request, timeout=280)
        next(call)
        done = shell.known("drain", "worker", "--json")
        assert (done.returncode, json.loads(done.stdout)["running"]) == (0, 1)
        with pytest.raises(grpc.RpcError, match="draining") as caught:
            list(worker.Generate(request, timeout=60))
        info = error_info_of(caught.value)
        assert info is not None
        assert info.reason == "NOT_READY"
        stack.gateway.wait_log("cannot be used: draining")
        listed = shell("workers", key="boss")
        assert listed.returncode == 1
        assert f"{stack.worker.address} cannot be used: draining\n" in listed.stdout
        next(call)
        call.cancel()
    assert shell.known("drain", "worker", "--wait", "--timeout", "60").returncode == 0
    # A pool is drained at its manager, which goes on to show it.
    drained = shell.known("drain", "pool", "--wait", "--timeout", "60")
    assert drained.stdout == "pool 'p' drains: nothing runs any more, it can be stopped\n"
    with open_channel(stack.manager.address, identity) as channel:
        manager = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        assert [pool.draining for pool in manager.ListPools(inspect_pb2.ListPoolsRequest()).pools] == [True]
