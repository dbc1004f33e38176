"""Records: what a manager was asked and answered, written to a file (``octavo/kv/v1/record.proto``) and read back."""

import itertools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf import proto
from google.protobuf.message import DecodeError

from kv_manager.core.manager import VERSION, Manager
from octavo.kv.v1 import attach_pb2, kv_manager_pb2, record_pb2, steps_pb2

FORMAT_VERSION = 1
MAX_RECORD_BYTES = (1 << 31) - 1
"""What protobuf can serialize."""

logger = logging.getLogger(__name__)


class CutRecordError(ValueError):
    """The file ends inside a message: its writer was killed, or had no room left."""


class RecordingManager(Manager):
    """A manager that writes down everything that changes it, after it has.

    A record is for whoever looks into a fault later, so the service goes on without one: the first write that fails is
    logged and is the last.

    Args:
        file: open for writing in binary; ``close`` closes it.
        arguments: those of ``Manager``.

    Attributes:
        recording: whether everything so far was written.
    """

    def __init__(self, file: BinaryIO, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self.recording = True
        self._file = file
        header = record_pb2.RecordHeader(
            format_version=FORMAT_VERSION, manager_id=self.manager_id, program=f"octavo kv_manager {VERSION}"
        )
        self._write(record_pb2.Record(header=header))
        self.flush()  # from now on the file is not empty: nobody else takes it

    def _write(self, record: record_pb2.Record) -> None:
        if not self.recording:
            return
        try:
            proto.serialize_length_prefixed(record, self._file)  # type: ignore[arg-type]  # any binary file will do
        except OSError as error:
            self._stop_recording(error)

    def flush(self) -> None:
        """Hand everything written to the operating system."""
        try:
            if self.recording:
                self._file.flush()
        except OSError as error:
            self._stop_recording(error)

    def close(self) -> None:
        """Write what is left and close the file."""
        self.flush()
        try:
            self._file.close()
        except OSError as error:  # what could not be written before cannot be now
            self._stop_recording(error)

    def _stop_recording(self, error: OSError) -> None:
        if self.recording:
            self.recording = False
            place, reason = getattr(self._file, "name", "the file"), error.strerror or str(error)
            logger.error("the record ends here, serving goes on: %s: %s; a restart begins another one", place, reason)

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        parts = list(parts)
        response = super().attach(parts)
        self._write(record_pb2.Record(attach=record_pb2.RecordedAttach(parts=parts, response=response)))
        return response

    def detach(self, request: attach_pb2.DetachRequest) -> attach_pb2.DetachResponse:
        response = super().detach(request)
        self._write(record_pb2.Record(detach=record_pb2.RecordedDetach(request=request, response=response)))
        return response

    def step(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        served = self.last_step(request.pool)
        response = super().step(request)
        if response.header.step != served:
            self._write(record_pb2.Record(step=record_pb2.RecordedStep(request=request, response=response)))
        return response

    def reset_prefix_cache(
        self, request: kv_manager_pb2.ResetPrefixCacheRequest
    ) -> kv_manager_pb2.ResetPrefixCacheResponse:
        response = super().reset_prefix_cache(request)
        self._write(record_pb2.Record(reset=record_pb2.RecordedReset(request=request, response=response)))
        return response

    def drain(self, request: kv_manager_pb2.DrainRequest) -> kv_manager_pb2.DrainResponse:
        response = super().drain(request)
        self._write(record_pb2.Record(drain=record_pb2.RecordedDrain(request=request, response=response)))
        return response

    def expire(self, pool: str, epoch: int) -> bool:
        expired = super().expire(pool, epoch)
        if expired:
            self._write(record_pb2.Record(expiry=record_pb2.PoolExpiry(pool=pool, epoch=epoch)))
        return expired


def open_record(path: Path) -> tuple[BinaryIO, Path]:
    """A file for a new record, and its name: ``path``, or the first of ``path.1``, ``path.2``, ... that is free.

    A restarted manager must not write over the record of what went wrong before it.

    Raises:
        OSError: no file can be made there.
    """
    for candidate in itertools.chain((path,), (path.with_name(f"{path.name}.{n}") for n in itertools.count(1))):
        try:
            return candidate.open("xb"), candidate
        except FileExistsError:
            if candidate.is_file() and candidate.stat().st_size:
                continue
            return candidate.open("wb"), candidate  # empty, a pipe or a device: nothing is lost
    raise AssertionError("unreachable")


def read_records(file: BinaryIO) -> Iterator[record_pb2.Record]:
    """The entries of a record file behind its header.

    Raises:
        ValueError: the file is no record, of another version, or damaged.
        CutRecordError: it ends inside a message; every whole one was read.
    """
    try:
        header = _read(file)
    except CutRecordError:
        header = None
    if header is None or header.WhichOneof("entry") != "header":
        raise ValueError("this is no record file: it does not start with a header")
    if header.header.format_version != FORMAT_VERSION:
        raise ValueError(f"record format {header.header.format_version} is not {FORMAT_VERSION}")
    while (record := _read(file)) is not None:
        yield record


def _read(file: BinaryIO) -> record_pb2.Record | None:
    """The next message, None at the end."""
    length = _read_length(file)
    if length is None:
        return None
    if length > MAX_RECORD_BYTES:
        raise ValueError(f"the record is damaged: no message is {length} bytes long")
    data = file.read(length)
    if len(data) < length:
        raise CutRecordError(f"the record is cut off: its last message has {len(data)} of {length} bytes")
    try:
        return record_pb2.Record.FromString(data)
    except DecodeError as error:
        raise ValueError(f"the record is damaged: {error}") from error


def _read_length(file: BinaryIO) -> int | None:
    """A varint: 7 bits a byte, the lowest first, the top bit set in all but the last; None at the end."""
    length = 0
    for shift in range(0, 64, 7):
        byte = file.read(1)
        if not byte:
            if shift:
                raise CutRecordError("the record is cut off inside the length of its last message")
            return None
        length |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return length
    raise ValueError("the record is damaged: a length takes more than 64 bits")
