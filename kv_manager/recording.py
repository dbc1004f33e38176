"""Records: what a manager was asked and answered, written to a file and played back (``octavo/kv/v1/record.proto``)."""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from google.protobuf import proto
from google.protobuf.message import DecodeError

from kv_manager.core.manager import VERSION, Manager
from octavo.kv.v1 import attach_pb2, kv_manager_pb2, record_pb2, steps_pb2

FORMAT_VERSION = 1


class RecordingManager(Manager):
    """A manager that writes down everything that changes it, after it has.

    Args:
        file: open for writing in binary; flushed by whoever closes it.
        arguments: those of ``Manager``.
    """

    def __init__(self, file: BinaryIO, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self._file = file
        header = record_pb2.RecordHeader(
            format_version=FORMAT_VERSION, manager_id=self.manager_id, program=f"octavo kv_manager {VERSION}"
        )
        self._write(record_pb2.Record(header=header))

    def _write(self, record: record_pb2.Record) -> None:
        proto.serialize_length_prefixed(record, self._file)  # type: ignore[arg-type]  # any binary file will do

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


def read_records(file: BinaryIO) -> Iterator[record_pb2.Record]:
    """The entries of a record file behind its header.

    Raises:
        ValueError: the file is no record, of another version, or damaged; one cut off at its end is read so far.
    """
    header = _read(file)
    if header is None or header.WhichOneof("entry") != "header":
        raise ValueError("this is no record file: it does not start with a header")
    if header.header.format_version != FORMAT_VERSION:
        raise ValueError(f"record format {header.header.format_version} is not {FORMAT_VERSION}")
    while (record := _read(file)) is not None:
        yield record


def _read(file: BinaryIO) -> record_pb2.Record | None:
    try:
        return proto.parse_length_prefixed(record_pb2.Record, file)  # type: ignore[arg-type]
    except (DecodeError, ValueError) as error:
        if not file.read(1):  # the process that wrote it was killed in the middle of its last record
            return None
        raise ValueError(f"the record is damaged: {error}") from error
