"""What viewers are sent: entries of a record file (``octavo/kv/v1/record.proto``), so a saved stream is a record."""

import time
from collections.abc import Iterable
from io import BytesIO

from google.protobuf import proto

from octavo.kv.v1 import inspect_pb2, record_pb2, watch_pb2

FORMAT_VERSION = 1


def header(manager_id: str, program: str) -> bytes:
    """What opens a record."""
    return _framed(
        record_pb2.Record(
            header=record_pb2.RecordHeader(format_version=FORMAT_VERSION, manager_id=manager_id, program=program)
        )
    )


def watched(response: watch_pb2.WatchResponse) -> bytes:
    """A message of the Watch stream. Salts are taken out of it: they are their callers' secrets."""
    for event in (response, *response.batch.events):
        _hide_salts(event.snapshot.sequences)
        if event.HasField("sequence_event"):
            _hide_salts((event.sequence_event.summary,))
    return _framed(record_pb2.Record(watched=record_pb2.RecordedWatch(at_ms=now_ms(), response=response)))


def looked(response: inspect_pb2.InspectPoolResponse) -> bytes:
    """The pool at a glance. Salts are taken out of it."""
    _hide_salts(response.sequences)
    return _framed(record_pb2.Record(looked=record_pb2.RecordedLook(at_ms=now_ms(), response=response)))


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _hide_salts(summaries: Iterable[inspect_pb2.SequenceSummary]) -> None:
    for summary in summaries:
        summary.root.ClearField("salt")


def _framed(record: record_pb2.Record) -> bytes:
    buffer = BytesIO()
    proto.serialize_length_prefixed(record, buffer)
    return buffer.getvalue()
