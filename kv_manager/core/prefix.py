"""Prefix digests: the byte layout documented at ``PrefixRoot`` in ``octavo/kv/v1/common.proto``.

    field(tag, value) = tag as one byte || length of value as u32 little-endian || value
    root     = SHA-256("octavo.kv.v1" || field(1, model_fingerprint) || field(2, tenant)
                       || field(3, salt) || field(4, adapter))
    digest_0 = SHA-256(root || ids of block 0),  digest_i = SHA-256(digest_{i-1} || ids of block i)

Token ids are u32 little-endian, exactly as they travel, so a block is hashed from a slice of the request's bytes.
"""

import struct
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

TOKEN_BYTES = 4
_DOMAIN = b"octavo.kv.v1"


class Root(NamedTuple):
    """The world a prefix belongs to; prefixes of different roots never match."""

    tenant: str = ""
    salt: str = ""
    adapter: str = ""

    def digest(self, fingerprint: str) -> bytes:
        """The 32 bytes before the first block's digest."""
        parts = [_DOMAIN]
        for tag, value in enumerate((fingerprint, self.tenant, self.salt, self.adapter), start=1):
            encoded = value.encode()
            parts.append(struct.pack("<BI", tag, len(encoded)))
            parts.append(encoded)
        return sha256(b"".join(parts)).digest()


def next_digest(parent: bytes, ids: bytes | bytearray, block: int, block_size: int) -> bytes:
    """The digest of one block; arguments as for ``chain``."""
    start = block * block_size * TOKEN_BYTES
    return sha256(parent + ids[start : start + block_size * TOKEN_BYTES]).digest()


def chain(parent: bytes, ids: bytes | bytearray, first_block: int, end_block: int, block_size: int) -> Iterator[bytes]:
    """Digests of blocks ``first_block`` to ``end_block - 1`` of ``ids``, each made when it is asked for.

    Args:
        parent: the digest before ``first_block``, the root's for block 0.
        ids: token ids from position 0 on, u32 little-endian, at least ``end_block * block_size`` of them.
    """
    size = block_size * TOKEN_BYTES
    for start in range(first_block * size, end_block * size, size):
        parent = sha256(parent + ids[start : start + size]).digest()
        yield parent
