"""The built library by ctypes: whether it runs here, its kernels, and the arguments they take (see src/calls.h)."""

import ctypes
import functools
import os
import platform
import struct
from collections.abc import Callable
from ctypes import c_double, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernels.cpu import build

ISA_VARIABLE = "OCTAVO_CPU_ISA"
"""Names one instruction set, to measure or test it where the processor has a better one."""

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""What norms, gates and products take; in other dtypes the reference computes them."""

WEIGHT_TYPES = {**TYPES, torch.int8: 16, torch.int32: 17}
"""What packed weights are stored in; an int32 holds eight of four bits."""
GATINGS = {"silu": 1, "gelu_tanh": 2}

VALUE_TYPES = {**TYPES, torch.float16: 2}
"""What attention and writes take as queries, keys and values."""

POOL_TYPES = {**VALUE_TYPES, torch.float8_e4m3fn: 3, torch.float8_e5m2: 4}
"""What a pool may be kept in."""

HEAD_DIM_MULTIPLE = {"avx512": 16, "avx2": 8, "neon": 4}
"""Floats in a register: attention reads head dims in whole registers."""
MAX_HEAD_DIM = 256
MAX_GROUP = 64

_BAD_INDEX, _NO_MEMORY = 1, 2


class Attention(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("query", "output", "keys")),
        *((name, c_int64) for name in ("value_offset", "block_stride", "head_stride", "num_blocks")),
        *((name, c_int64) for name in ("query_type", "pool_type", "token_stride")),
        *((name, c_void_p) for name in ("query_starts", "context_lengths", "block_tables")),
        *((name, c_int64) for name in ("tokens", "sequences", "table_width")),
        *((name, c_int64) for name in ("heads", "kv_heads", "head_dim", "block_size", "window")),
        *((name, c_double) for name in ("scale", "soft_cap")),
        *((name, c_void_p) for name in ("sinks", "kv_scales")),
        ("threads", c_int64),
    ]


class Linear(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("input", "output", "panels", "bias", "scales")),
        *((name, c_int64) for name in ("value_type", "output_type", "weight_type")),
        *((name, c_int64) for name in ("rows", "in_", "out", "panel_count", "gating", "threads")),
    ]


class Embedding(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("ids", "output", "panels", "scales")),
        *((name, c_int64) for name in ("output_type", "weight_type", "tokens", "in_", "out", "threads")),
    ]


class Norm(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("hidden", "delta", "weight", "output")),
        *((name, c_int64) for name in ("type", "rows", "width")),
        ("epsilon", c_double),
        ("threads", c_int64),
    ]


class Gate(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("gate_up", "output")),
        *((name, c_int64) for name in ("type", "rows", "width", "threads")),
    ]


class Write(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("query", "key", "value")),
        *((name, c_int64) for name in ("query_stride", "key_stride", "value_stride")),
        *((name, c_void_p) for name in ("cosine", "sine", "keys")),
        *((name, c_int64) for name in ("value_offset", "block_stride", "head_stride", "num_blocks")),
        ("slots", c_void_p),
        *((name, c_int64) for name in ("value_type", "pool_type")),
        *((name, c_int64) for name in ("tokens", "heads", "kv_heads", "head_dim", "half", "block_size", "threads")),
        ("kv_scales", c_void_p),
    ]


class TopK(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("logits", "values", "indices")),
        *((name, c_int64) for name in ("rows", "width", "k", "threads")),
    ]


class DecoderLayer(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("attention_norm", "query_norm", "key_norm")),
        *((name, c_void_p) for name in ("after_attention_norm", "ffn_norm", "after_ffn_norm")),
        *((name, Linear) for name in ("qkv", "attention_out", "gate_up", "down")),
        *((name, c_int64) for name in ("window", "rotation")),
    ]


class Decoder(ctypes.Structure):
    _fields_ = [
        ("layers", c_void_p),
        ("count", c_int64),
        *((name, c_void_p) for name in ("hidden", "delta")),
        *((name, c_int64) for name in ("value_type", "rows", "width")),
        ("epsilon", c_double),
        *((name, c_void_p) for name in ("cosines", "sines")),
        *((name, c_int64) for name in ("layer_bytes", "threads")),
        ("attention", Attention),
        ("write", Write),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        ("embedding", Embedding),
        ("factor", c_double),
        ("decoder", Decoder),
        ("positions", c_void_p),
        *((name, c_int64) for name in ("rotations", "rotation_rows")),
        *((name, c_void_p) for name in ("logits_at", "norm")),
        ("output", Linear),
    ]


_Kernel = ctypes.CFUNCTYPE(c_int64, c_void_p)


class Kernels(NamedTuple):
    """The kernels of one instruction set; each takes the address of its arguments, and releases the GIL meanwhile."""

    isa: str
    attention: Callable[[Any], int]
    linear: Callable[[Any], int]
    embedding: Callable[[Any], int]
    add_rms_norm: Callable[[Any], int]
    silu_mul: Callable[[Any], int]
    write: Callable[[Any], int]
    top_k: Callable[[Any], int]
    decoder: Callable[[Any], int]
    model: Callable[[Any], int]


class _Kernels(ctypes.Structure):
    _fields_ = [("isa", ctypes.c_char_p), *((name, _Kernel) for name in Kernels._fields[1:])]


def why_not() -> str | None:
    """None when the kernels run here, otherwise why not and what would help."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def kernels() -> Kernels:
    """The kernels for this processor. RuntimeError when `why_not` has a reason."""
    loaded = _load()
    if isinstance(loaded, str):
        raise RuntimeError(loaded)
    return loaded


def describe() -> str:
    """The instruction set and the number of threads in use."""
    return f"{kernels().isa} on {torch.get_num_threads()} threads"


def refuse(status: int, bad_index: str = "") -> None:
    """IndexError when a kernel found an index outside what it may read or write, MemoryError when it had no memory."""
    if status == _BAD_INDEX:
        raise IndexError(bad_index)
    if status == _NO_MEMORY:
        raise MemoryError("the CPU kernels found no memory to compute in")


def cut_short(path: Path) -> bool:
    """Whether an ELF file ends before a segment that the loader maps: touching that kills the process by SIGBUS."""
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:4] != b"\x7fELF":
            return header[:4] == b"\x7fELF"  # what is none at all, the loader refuses by itself
        (at,), (size, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
        file.seek(at)
        segments = file.read(size * count)
    if len(segments) < size * count:
        return True
    ends = []
    for start in range(0, len(segments), size):
        offset, _, _, bytes_in_file = struct.unpack_from("<QQQQ", segments, start + 8)
        ends.append(offset + bytes_in_file)
    return max(ends, default=0) > path.stat().st_size


@functools.cache
def _load() -> Kernels | str:
    rebuild = "`python -m kernels.cpu.build` builds it, with a C++ compiler"
    if not build.LIBRARY.exists():
        return f"its library was not built when octavo was installed ({rebuild})"
    if cut_short(build.LIBRARY):
        return f"its library does not load: the file is cut short ({rebuild})"
    try:
        library = ctypes.CDLL(str(build.LIBRARY))
        library.octavo_sources.restype = ctypes.c_char_p
        library.octavo_kernels.restype = ctypes.POINTER(_Kernels)
        library.octavo_kernels.argtypes = [ctypes.c_char_p]
        # A struct that differs between the two sides would be memory read wrongly, not an error.
        if library.octavo_sources().decode() != build.sources_digest():
            return f"its library was built from other sources than these ({rebuild})"
    except (OSError, AttributeError) as error:
        return f"its library does not load: {error} ({rebuild})"
    wanted = os.environ.get(ISA_VARIABLE)
    table = library.octavo_kernels(wanted.encode() if wanted else None)
    if not table and wanted:
        known = build.INSTRUCTION_SETS.get(platform.machine(), {})
        return f"{ISA_VARIABLE}={wanted}: " + (
            "this processor lacks it" if wanted in known else f"no such instruction set; there are {', '.join(known)}"
        )
    if not table:
        return "this processor lacks the instructions it is written for: AVX2 with FMA, or NEON"
    found = table.contents
    return Kernels(found.isa.decode(), *(getattr(found, name) for name in Kernels._fields[1:]))
