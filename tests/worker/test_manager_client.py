"""The way to the manager over a connection that breaks: nothing is lost, and nothing is applied twice."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from processes import ServiceProcess

from model_worker.engine.manager_client import GrpcManagerClient, ManagerLost, ManagerRefused
from model_worker.engine.wire import pack_ids
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, kv_manager_pb2_grpc, steps_pb2
from service.channels import open_channel

pytestmark = pytest.mark.e2e


class Cable:
    """A TCP relay to an address that can be cut and mended."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._whole = True
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._whole:
                near.close()
                continue
            far = socket.create_connection(self._target)
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()

    def cut(self) -> None:
        """Break every connection; new ones are refused until ``mend``."""
        self._whole = False
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                end.close()
        self._ends.clear()

    def mend(self) -> None:
        self._whole = True

    def close(self) -> None:
        self._listener.close()
        self.cut()


@pytest.fixture
def manager() -> Iterator[ServiceProcess]:
    with ServiceProcess("kv_manager", "--listen=127.0.0.1:0", "--metrics=", "--lease-seconds=600") as process:
        yield process.wait_ready()


@pytest.fixture
def cable(manager: ServiceProcess) -> Iterator[Cable]:
    relay = Cable(manager.address)
    yield relay
    relay.close()


@pytest.fixture
def client(cable: Cable) -> Iterator[GrpcManagerClient]:
    made = GrpcManagerClient(cable.address, patience_seconds=60)
    yield made
    made.close()


def attach(client: GrpcManagerClient) -> int:
    spec = attach_pb2.PoolSpec(
        pool="p", worker_id="w", num_blocks=10, block_size=4, reuse_regime=common_pb2.REUSE_REGIME_ORDERED
    )
    return client.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch


def admit(epoch: int, step: int) -> steps_pb2.StepRequest:
    request = steps_pb2.StepRequest(pool="p", epoch=epoch, step=step, completed_step=step - 1)
    request.admits.add(seq=step, token_ids=pack_ids([step] * 4), num_tokens=4, arrival=step)
    return request


def test_a_cut_connection_loses_nothing_and_applies_nothing_twice(
    manager: ServiceProcess, cable: Cable, client: GrpcManagerClient
) -> None:
    epoch = attach(client)
    for step in range(1, 7):
        client.send(admit(epoch, step))
        # Before the request arrived, while it is served, or after its answer was lost: all look alike from here.
        cable.cut()
        cable.mend()
        answer = client.receive()
        assert answer.header.step == step
        assert [list(grant.blocks) for grant in answer.grants] == [[step]]
    kv = kv_manager_pb2_grpc.KvManagerServiceStub(open_channel(manager.address))
    pool = kv.InspectPool(inspect_pb2.InspectPoolRequest(pool="p"))
    assert pool.summary.totals.admitted_sequences == 6
    assert pool.summary.stats.referenced_blocks == 6


def test_a_manager_out_of_reach_is_lost_after_the_patience(cable: Cable) -> None:
    client = GrpcManagerClient(cable.address, patience_seconds=2)
    epoch = attach(client)
    cable.cut()
    client.send(admit(epoch, 1))
    with pytest.raises(ManagerLost):
        client.receive()
    # Given up, not pending: the step goes out once the cable is whole, by a new send alone.
    cable.mend()
    client.send(admit(epoch, 1))
    assert client.receive().header.step == 1
    client.close()


def test_a_refusal_is_told_with_its_reason(client: GrpcManagerClient) -> None:
    epoch = attach(client)
    client.send(admit(epoch, 5))
    with pytest.raises(ManagerRefused) as caught:
        client.receive()
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STEP")
    client.send(admit(epoch - 1, 1))
    with pytest.raises(ManagerRefused) as caught:
        client.receive()
    assert caught.value.reason == "STALE_EPOCH"


def test_a_large_request_passes(client: GrpcManagerClient, tmp_path: Path) -> None:
    epoch = attach(client)
    request = admit(epoch, 1)
    request.admits[0].token_ids = pack_ids([7] * 1_000_000)
    client.send(request)
    # A million tokens never fit 10 blocks of 4: an answer, not an error of the transport.
    assert [(one.needed, one.available) for one in client.receive().rejected] == [(250_001, 10)]
