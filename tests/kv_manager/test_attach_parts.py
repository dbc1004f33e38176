"""An Attach that must be refused is refused with the message that shows it, and nothing is kept of it."""

import itertools
import threading

import grpc
import pytest

from cli.embedded_manager import EmbeddedManager
from kv_manager.core import attach_parts
from kv_manager.core.attach_parts import SEQUENCE_BYTES, AttachParts
from kv_manager.core.manager import Manager
from kv_manager.settings import Settings
from octavo.kv.v1 import attach_pb2, kv_manager_pb2_grpc
from service.errors import ServiceError

CHUNK = attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[attach_pb2.LiveSequence(seq=1)] * 10))


def pool(**fields):
    given = {"pool": "pool", "worker_id": "w", "num_blocks": 8, "block_size": 4, "reuse_regime": 1} | fields
    return attach_pb2.AttachRequest(pool=attach_pb2.PoolSpec(**given))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("before", "part", "field"),
    [
        ([], CHUNK, "part"),
        ([], attach_pb2.AttachRequest(), "part"),
        ([], pool(block_size=0), "pool.block_size"),
        ([], pool(num_blocks=9), "pool.num_blocks"),
        ([pool()], pool(), "part"),
        ([pool(), CHUNK], attach_pb2.AttachRequest(), "part"),
    ],
)
def test_a_message_out_of_place_is_refused_when_it_comes(before, part, field):
    parts = AttachParts(max_blocks=8)
    for each in before:
        parts.add(each)
    with pytest.raises(ServiceError) as caught:
        parts.add(part)
    assert (caught.value.code, list(caught.value.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, [field])
    assert list(parts) == []


@pytest.mark.unit
def test_a_snapshot_is_bounded_in_bytes_and_in_sequences(monkeypatch):
    """The pool, and chunks of ten sequences of four bytes with their tags: 2 + 10 * 4 bytes and 10 * 256 in memory."""
    chunk = 2 + 10 * 4 + 10 * SEQUENCE_BYTES
    assert CHUNK.ByteSize() == 2 + 10 * 4
    monkeypatch.setattr(attach_parts, "MAX_SNAPSHOT_BYTES", pool().ByteSize() + 3 * chunk)
    parts = AttachParts(max_blocks=8)
    for part in (pool(), CHUNK, CHUNK, CHUNK):
        parts.add(part)
    assert len(parts.read()[1]) == 30
    with pytest.raises(ServiceError, match=f"at most {pool().ByteSize() + 3 * chunk}$"):
        parts.add(attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences()))
    assert list(parts) == []


@pytest.mark.unit
def test_an_attach_without_a_message_is_refused():
    with pytest.raises(ServiceError, match="the first message must carry the pool"):
        Manager().attach([])


@pytest.mark.e2e
@pytest.mark.parametrize(("first", "field"), [(pool(block_size=0), "pool.block_size"), (pool(), "sequences")])
def test_a_stream_that_goes_on_for_ever_is_answered(monkeypatch, first, field):
    """A bad pool is refused although the stream stays open; after a good one it grows until it is too large."""
    monkeypatch.setattr(attach_parts, "MAX_SNAPSHOT_BYTES", 100_000)
    answered = threading.Event()

    def messages():
        yield first
        if field == "pool.block_size":
            answered.wait()
        yield from itertools.takewhile(lambda _: not answered.is_set(), itertools.repeat(CHUNK))

    with EmbeddedManager(Settings(listen="127.0.0.1:0", metrics="")) as embedded:
        with grpc.insecure_channel(embedded.address) as channel:
            stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
            try:
                with pytest.raises(grpc.RpcError, match=field) as caught:
                    stub.Attach(messages(), timeout=60)
            finally:
                answered.set()
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert embedded.manager.pools() == []
