"""What subscribers of ``VllmEngine`` are told of the manager's cache events."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from model_worker.vllm_face import kv_events
from model_worker.vllm_face.known_blocks import KnownBlocks
from model_worker.vllm_face.kv_events import CacheEvents, block_hash, root_digest
from octavo.kv.v1 import watch_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "prefix_digests.json").read_text())
PLAIN = VECTORS[0]  # three blocks of 4 tokens, no tenant
DIGESTS = [bytes.fromhex(digest) for digest in PLAIN["digests"]]
ROOT = bytes.fromhex(PLAIN["root"])


def packed(ids: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in ids)


def stored(parent: bytes, digests: list[bytes], ids: list[int], sequence: int = 7) -> watch_pb2.WatchResponse:
    event = watch_pb2.DigestsStored(parent=parent, digests=digests, token_ids=packed(ids))
    return watch_pb2.WatchResponse(sequence=sequence, stored=event)


def test_the_root_is_the_managers() -> None:
    for vector in VECTORS:
        if not (vector["tenant"] or vector["salt"] or vector["adapter"]):
            assert root_digest(vector["model_fingerprint"]).hex() == vector["root"]


def subscriber(known: KnownBlocks | None = None) -> CacheEvents:
    return CacheEvents(ROOT, block_size=4, known=KnownBlocks() if known is None else known)


def one(events: CacheEvents, response: watch_pb2.WatchResponse) -> Any:
    (batch,) = events.batches(response)
    return batch


def removed(*digests: bytes) -> watch_pb2.WatchResponse:
    return watch_pb2.WatchResponse(sequence=8, removed=watch_pb2.DigestsRemoved(digests=digests))


def snapshot(events: CacheEvents, *digests: bytes, sequence: int = 9) -> list[Any]:
    """What a snapshot in two pieces comes to."""
    piece = watch_pb2.WatchResponse(sequence=sequence, snapshot=watch_pb2.Snapshot(digests=digests))
    last = watch_pb2.WatchResponse(sequence=sequence, snapshot=watch_pb2.Snapshot(last=True))
    return [*events.batches(piece), *events.batches(last)]


def told_blocks(batch: Any) -> list[tuple[int, list[int], int | None]]:
    """(hash, ids, parent's hash or None) of every block stored."""
    return [
        (
            block.block_hash,
            list(block.token_ids),
            stored.parent_block_hash if stored.HasField("parent_block_hash") else None,
        )
        for stored in (event.stored for event in batch.events if event.HasField("stored"))
        for block in stored.blocks
    ]


HASHES = [block_hash(digest) for digest in DIGESTS]
WHOLE = [
    (HASHES[0], [1, 2, 3, 4], None),
    (HASHES[1], [5, 6, 7, 8], HASHES[0]),
    (HASHES[2], [9, 10, 11, 12], HASHES[1]),
]


def test_stored_blocks_are_told_with_their_ids_and_parent() -> None:
    events = subscriber()
    first = one(events, stored(ROOT, DIGESTS[:2], list(range(1, 9))))
    assert first.sequence_number == 7
    assert {event.event_id for event in first.events} == {7}
    assert {event.stored.blocks[0].block_size for event in first.events} == {4}
    second = one(events, stored(DIGESTS[1], DIGESTS[2:], [9, 10, 11, 12]))
    assert told_blocks(first) + told_blocks(second) == WHOLE


def test_others_blocks_are_not_told_and_leave_no_gap() -> None:
    events = subscriber()
    for response in (stored(b"another root" + bytes(20), DIGESTS[:1], [1, 2, 3, 4]), removed(DIGESTS[0])):
        batch = one(events, response)
        assert (batch.sequence_number, len(batch.events)) == (response.sequence, 0)


def test_removed_blocks_are_told_to_whom_they_were_told() -> None:
    events = subscriber()
    one(events, stored(ROOT, DIGESTS[:1], [1, 2, 3, 4]))
    assert list(one(events, removed(*DIGESTS)).events[0].removed.block_hashes) == HASHES[:1]
    assert not one(events, removed(*DIGESTS)).events


@pytest.mark.parametrize("cached", [0, 3])
def test_a_snapshot_says_what_it_does_not_know(cached: int) -> None:
    (batch,) = snapshot(subscriber(), *DIGESTS[:cached])
    assert [event.WhichOneof("data") for event in batch.events] == ["cleared"]
    assert (batch.sequence_number, batch.snapshot.index, batch.snapshot.count, batch.snapshot.blocks) == (9, 0, 1, 0)
    assert batch.snapshot.unknown_before == (9 if cached else 0)


def test_a_later_subscriber_hears_what_an_earlier_one_was_told_and_is_still_cached() -> None:
    known = KnownBlocks()
    one(subscriber(known), stored(ROOT, DIGESTS, list(range(1, 13))))
    # The order of a snapshot's digests is none; parents are told first all the same.
    (batch,) = snapshot(subscriber(known), *reversed(DIGESTS))
    assert told_blocks(batch) == WHOLE
    assert {event.event_id for event in batch.events} == {0}
    assert (batch.snapshot.blocks, batch.snapshot.unknown_before) == (3, 0)
    # The second block went while nobody listened: the third has no place now.
    (batch,) = snapshot(late := subscriber(known), DIGESTS[0], DIGESTS[2])
    assert told_blocks(batch) == WHOLE[:1]
    assert (batch.snapshot.blocks, batch.snapshot.unknown_before) == (1, 9)
    one(late, watch_pb2.WatchResponse(sequence=10, cleared=watch_pb2.CacheCleared()))
    assert len(known) == 0


def test_a_large_snapshot_comes_in_chunks_that_end_at_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "SNAPSHOT_BLOCKS", 2)
    known = KnownBlocks()
    one(subscriber(known), stored(ROOT, DIGESTS, list(range(1, 13))))
    chunks = snapshot(subscriber(known), *DIGESTS)
    assert [(one.sequence_number, one.snapshot.index, one.snapshot.count) for one in chunks] == [(8, 0, 2), (9, 1, 2)]
    assert [block for chunk in chunks for block in told_blocks(chunk)] == WHOLE
    # Numbers begin with 1, so there is room for one chunk only.
    (batch,) = snapshot(subscriber(known), *DIGESTS, sequence=1)
    assert (batch.sequence_number, told_blocks(batch)) == (1, WHOLE)


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (stored(ROOT, DIGESTS[:1], []), grpc.StatusCode.UNIMPLEMENTED),
        (watch_pb2.WatchResponse(pool_dropped=watch_pb2.PoolDropped(reason="lease")), grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_a_stream_that_cannot_tell_ends(response: watch_pb2.WatchResponse, code: grpc.StatusCode) -> None:
    with pytest.raises(ServiceError) as ended:
        list(subscriber().batches(response))
    assert ended.value.code is code
