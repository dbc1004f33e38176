"""Pieces of the manager's messages."""

import array
import sys
from collections.abc import Iterable

from model_worker.engine.sequence import Sequence
from octavo.kv.v1 import common_pb2


def root_of(sequence: Sequence) -> common_pb2.PrefixRoot:
    """The world a sequence's prefix belongs to."""
    return common_pb2.PrefixRoot(tenant=sequence.tenant, salt=sequence.salt, adapter=sequence.adapter)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as u32 little-endian, the wire's form."""
    packed = array.array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
