"""``python -m kv_manager.replay FILE``: play a record against a manager and compare its answers.

Without ``--target`` a manager in this process plays; with it, any manager that speaks the contract.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from kv_manager.core.manager import Manager
from kv_manager.recording import CutRecordError, read_records
from octavo.kv.v1 import attach_pb2, kv_manager_pb2, kv_manager_pb2_grpc, record_pb2, steps_pb2
from service.channels import open_channel
from service.errors import ServiceError

DETACH_SECONDS = 5.0


class Target(Protocol):
    """What a record is played against: a ``Manager``, or a stub behind ``RemoteTarget``."""

    def attach(self, parts: list[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse: ...
    def detach(self, request: attach_pb2.DetachRequest) -> attach_pb2.DetachResponse: ...
    def step(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse: ...
    def reset_prefix_cache(
        self, request: kv_manager_pb2.ResetPrefixCacheRequest
    ) -> kv_manager_pb2.ResetPrefixCacheResponse: ...
    def drain(self, request: kv_manager_pb2.DrainRequest) -> kv_manager_pb2.DrainResponse: ...


class RemoteTarget:
    """A manager at an address."""

    def __init__(self, stub: kv_manager_pb2_grpc.KvManagerServiceStub) -> None:
        self.step = stub.Step
        self.reset_prefix_cache = stub.ResetPrefixCache
        self.drain = stub.Drain
        self._stub = stub
        self._epochs: dict[str, int] = {}

    def attach(self, parts: list[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        """As ``Manager.attach``."""
        response = self._stub.Attach(iter(parts))
        self._epochs[response.header.pool] = response.header.epoch
        return response

    def detach(self, request: attach_pb2.DetachRequest) -> attach_pb2.DetachResponse:
        """As ``Manager.detach``."""
        response = self._stub.Detach(request)
        self._epochs.pop(request.pool, None)
        return response

    def leave(self) -> None:
        """Give up the pools attached and not detached. One that somebody else has attached meanwhile stays: its epoch
        is another."""
        for pool, epoch in self._epochs.items():
            with suppress(grpc.RpcError):
                self._stub.Detach(attach_pb2.DetachRequest(pool=pool, epoch=epoch), timeout=DETACH_SECONDS)
        self._epochs.clear()


@dataclass(frozen=True, slots=True)
class Played:
    """One record and how its answer compares.

    Attributes:
        kind: the record's entry: attach, step, detach, reset, drain or expiry.
        recorded: the answer then, with what names a process taken out; None for an expiry.
        replayed: the answer now, likewise.
    """

    kind: str
    pool: str
    step: int
    recorded: Message | None
    replayed: Message | None

    @property
    def equal(self) -> bool:
        """Whether both managers answered the same."""
        return self.recorded == self.replayed


def replay(records: Iterator[record_pb2.Record], target: Target) -> Iterator[Played]:
    """Play records in order. Epochs are the target's own: they are put into requests and taken out of answers.

    Raises:
        ValueError: an entry speaks of a pool that no entry before it attached, or is of no kind that is played.
    """
    epochs: dict[str, int] = {}
    for record in records:
        kind = record.WhichOneof("entry")
        if kind in ("watched", "looked"):
            raise ValueError("it holds what was watched and asks for nothing: `octavo replay` checks it")
        if kind is None or kind == "header" or (kind == "attach" and not record.attach.parts):
            raise ValueError("the record is damaged, or of a later version: an entry is none that is played")
        entry: Any = getattr(record, kind)
        if kind == "attach":
            pool = entry.parts[0].pool.pool
            answer: Any = target.attach(list(entry.parts))
            epochs[pool] = answer.header.epoch
        elif kind == "expiry":
            target.detach(attach_pb2.DetachRequest(pool=entry.pool, epoch=_epoch_of(epochs, entry.pool)))
            yield Played(kind, entry.pool, 0, None, None)
            continue
        else:
            pool = entry.request.pool
            epoch = _epoch_of(epochs, pool)
            if kind in ("step", "detach"):
                entry.request.epoch = epoch
            calls: dict[str, Any] = {
                "step": target.step,
                "detach": target.detach,
                "reset": target.reset_prefix_cache,
                "drain": target.drain,
            }
            answer = calls[kind](entry.request)
        yield Played(kind, pool, entry.response.header.step, _normalised(entry.response), _normalised(answer))


def _epoch_of(epochs: dict[str, int], pool: str) -> int:
    if pool not in epochs:
        raise ValueError(f"the record speaks of pool {pool!r} before it is attached")
    return epochs[pool]


def _normalised(response: Any) -> Message:
    """A copy without what differs between two managers that behave alike: who answered, its epoch and its lease."""
    copy = type(response)()
    copy.CopyFrom(response)
    copy.header.ClearField("manager_id")
    copy.header.ClearField("epoch")
    if isinstance(copy, attach_pb2.AttachResponse):
        copy.ClearField("lease_ms")
    return copy  # type: ignore[no-any-return]


@contextmanager
def manager_behind(channel: grpc.Channel) -> Iterator[Target]:
    """The manager that a channel leads to; it keeps no pool of the record."""
    target = RemoteTarget(kv_manager_pb2_grpc.KvManagerServiceStub(channel))
    try:
        yield target
    finally:
        target.leave()


def play(path: Path, target: Target) -> int:
    """Play a file and say what differs; returns 0 when nothing does, 1 when something does, 2 for a bad file.

    A file that ends inside a message is played as far as it goes, and is a bad one if nothing differs so far.
    """
    count = different = 0
    cut = False
    try:
        with path.open("rb") as file:
            for played in replay(read_records(file), target):
                count += 1
                if not played.equal:
                    different += 1
                    sys.stdout.write(
                        f"{played.kind} {played.step} of pool {played.pool!r} differs\n"
                        f"recorded: {played.recorded}\nreplayed: {played.replayed}\n"
                    )
    except CutRecordError as error:
        cut = True
        sys.stderr.write(f"{path}: {error}\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        sys.stderr.write(f"{path}: {reason}\n")
        return 2
    sys.stdout.write(f"{count} records played, {different} answers differ\n")
    if different:
        return 1
    return 2 if cut else 0


def main(arguments: list[str] | None = None) -> int:
    """Play a file against a manager in this process or at an address; returns what ``play`` does, 1 for a refusal."""
    parser = argparse.ArgumentParser(prog="python -m kv_manager.replay", description=__doc__)
    parser.add_argument("file", type=Path, help="record written by --record")
    parser.add_argument("--target", metavar="HOST:PORT", help="manager to play against; default: one in this process")
    given = parser.parse_args(arguments)
    try:
        if not given.target:
            return play(given.file, Manager())
        with open_channel(given.target) as channel, manager_behind(channel) as target:
            return play(given.file, target)
    except ServiceError as error:
        refusal = error.message
    except grpc.RpcError as error:
        refusal = f"{error.code().name} {error.details()}"
    sys.stderr.write(f"{given.file}: the manager refuses what was recorded: {refusal}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
