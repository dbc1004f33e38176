"""The tokenizer files as one zip archive."""

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from smg_grpc_proto.generated import common_pb2

CHUNK_BYTES = 1 << 18
# The same files give the same archive, and so the same digest, on every worker.
NO_TIME = (1980, 1, 1, 0, 0, 0)


def archive(files: Mapping[str, bytes]) -> bytes:
    """A zip archive of files by name. Takes tenths of a second for a large vocabulary."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as writer:
        for name in sorted(files):
            writer.writestr(zipfile.ZipInfo(name, NO_TIME), files[name], zipfile.ZIP_DEFLATED)
    return target.getvalue()


def pieces(data: bytes) -> Iterator[Any]:
    """``GetTokenizerChunk`` messages; the last one carries the SHA-256 of the whole in hex."""
    digest = hashlib.sha256(data).hexdigest()
    for start in range(0, len(data), CHUNK_BYTES):
        last = start + CHUNK_BYTES >= len(data)
        yield common_pb2.GetTokenizerChunk(data=data[start : start + CHUNK_BYTES], sha256=digest if last else "")
