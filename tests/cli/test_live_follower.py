"""A follower of a KV manager that stops answering."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from cli.live import follower
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc, watch_pb2

pytestmark = pytest.mark.unit

SECONDS = 60.0


class SilentManager(kv_manager_pb2_grpc.KvManagerServiceServicer):
    """Begins a snapshot, and answers nothing more."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.over = threading.Event()

    def Watch(self, request: watch_pb2.WatchRequest, context: Any) -> Iterator[watch_pb2.WatchResponse]:
        response = watch_pb2.WatchResponse()
        response.snapshot.SetInParent()
        yield response
        self.over.wait(SECONDS)

    def InspectPool(self, request: inspect_pb2.InspectPoolRequest, context: Any) -> inspect_pb2.InspectPoolResponse:
        self.asked.set()
        self.over.wait(SECONDS)
        return inspect_pb2.InspectPoolResponse()


def test_a_manager_that_falls_silent_in_a_snapshot_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "PATIENCE_SECONDS", 0.2)
    manager = SilentManager()
    server = grpc.server(ThreadPoolExecutor(20))
    kv_manager_pb2_grpc.add_KvManagerServiceServicer_to_server(manager, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with grpc.insecure_channel(address) as channel:
            following = follower.Follower(kv_manager_pb2_grpc.KvManagerServiceStub(channel), "default", address)
            with following:
                assert manager.asked.wait(SECONDS)
                with following.lock:
                    told = following.lock.wait_for(lambda: following.mirror.trouble != "", SECONDS / 2)
                if not told:
                    manager.over.set()  # or the follower would not end
                assert told
    finally:
        manager.over.set()
        server.stop(0).wait()
