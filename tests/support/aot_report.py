"""What a compiled kernel says of itself: registers, spills, shared memory, how wide it loads, how it multiplies."""

import re
from collections import Counter
from dataclasses import dataclass

from aot_gate import Compiled, disassembled, resource_usage

SASS_FLAGS = re.MULTILINE | re.DOTALL
LDS_BYTES = 65_536
"""Shared memory of a work group on gfx942."""
SHARED_BYTES = {
    "sm_80": 166_912,
    "sm_89": 101_376,
    "sm_90": 232_448,
    "sm_100": 232_448,
    "sm_120": 101_376,
    "gfx942": LDS_BYTES,
}


@dataclass(frozen=True, slots=True)
class Report:
    registers: int
    spilled_bytes: int
    """Stack bytes of a thread on NVIDIA, spilled vector registers on AMD (scalar ones spill to vector lanes there)."""
    shared_bytes: int
    wide_loads: int
    """Loads of 16 bytes, asynchronous copies to shared memory included."""
    narrow_loads: int
    """Loads of less than 4 bytes."""
    wide_stores: int
    products: Counter[str]
    """Matrix instructions by name."""

    @property
    def warp_group_products(self) -> int:
        return sum(count for name, count in self.products.items() if name.startswith(("HGMMA", "UTC")))


def report(compiled: Compiled) -> Report:
    shared = compiled.result.metadata.shared
    if compiled.target == "gfx942":
        return of_amdgcn(compiled.result.asm["amdgcn"], shared)
    return of_cubin(compiled.result.asm["cubin"], compiled.name, shared)


def of_cubin(cubin: bytes, kernel: str, shared_bytes: int = 0) -> Report:
    usage = re.search(rf"Function {kernel}:\s*(.*)", resource_usage(cubin))[1]
    # nvdisasm opens every section with a line "//----- .text.kernel -----".
    sass = re.search(rf"^//-+ \.text\.{kernel} +-+$(.*?)(?:^//-{{9}}|\Z)", disassembled(cubin), SASS_FLAGS)[1]
    loads = re.findall(r"\b(?:LDG|LDGSTS)\.E[\w.]*", sass)
    stores = re.findall(r"\bSTG\.E[\w.]*", sass)
    return Report(
        registers=int(re.search(r"\bREG:(\d+)", usage)[1]),
        spilled_bytes=int(re.search(r"\bSTACK:(\d+)", usage)[1]),
        shared_bytes=shared_bytes,
        wide_loads=sum(".128" in load for load in loads),
        narrow_loads=sum(bool(re.search(r"\.[US](?:8|16)\b", load)) for load in loads),
        wide_stores=sum(".128" in store for store in stores),
        products=Counter(re.findall(r"\b(?:HMMA|HGMMA|QGMMA|IMMA|UTC[A-Z]*MMA)\b", sass)),
    )


def of_amdgcn(text: str, shared_bytes: int) -> Report:
    def number(field: str) -> int:
        return int(re.search(rf"\.{field}:\s*(\d+)", text)[1])

    return Report(
        registers=number("vgpr_count"),
        spilled_bytes=number("vgpr_spill_count"),
        shared_bytes=shared_bytes,
        wide_loads=len(re.findall(r"\b(?:global|buffer)_load_dwordx4\b", text)),
        narrow_loads=len(re.findall(r"\b(?:global|buffer)_load_(?:ubyte|sbyte|ushort|sshort|short)", text)),
        wide_stores=len(re.findall(r"\b(?:global|buffer)_store_dwordx4\b", text)),
        products=Counter(re.findall(r"\bv_mfma_\w+", text)),
    )
