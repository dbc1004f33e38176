"""CUDA C++ compiled as HIP for AMD's GPUs by clang, with no headers of AMD's and no device.

The `ziglang` wheel carries a clang with that target; a distribution's clang serves as well.
"""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

NAMES = Path(__file__).with_name("hip_names.h")


class HipKernel(NamedTuple):
    """What the assembly of one kernel says of it."""

    vector_registers: int
    spills: int
    stack_bytes: int
    wide_loads: int
    wide_stores: int


def compiler() -> list[str] | None:
    """The command of a clang that compiles HIP, if there is one."""
    found = importlib.util.find_spec("ziglang")
    if found is not None and found.origin is not None:
        return [str(Path(found.origin).with_name("zig")), "clang"]
    clang = shutil.which("clang")
    return [clang] if clang else None


def compile_hip(source: str, target: str, folder: Path) -> dict[str, HipKernel]:
    """The kernels of a source by name, compiled for a target such as gfx942. RuntimeError with what clang said."""
    command = compiler()
    if command is None:
        raise RuntimeError("no clang")
    given, made = folder / "source.hip", folder / "source.s"
    given.write_text(source)
    options = ["-x", "hip", "--offload-device-only", f"--offload-arch={target}", "-nogpulib", "-nogpuinc"]
    done = subprocess.run(
        [*command, *options, "-O3", "-std=c++17", "-include", str(NAMES), "-S", str(given), "-o", str(made)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(_reports(made.read_text()))


def _reports(assembly: str) -> list[tuple[str, HipKernel]]:
    reports = []
    for entry in re.split(r"\n  - \.", assembly[assembly.index("amdhsa.kernels:") :]):
        fields = dict(re.findall(r"\.?(\w+):\s+(\S+)", entry))
        if "vgpr_count" not in fields:
            continue
        name = fields["name"]
        body = assembly[assembly.index(f"\n{name}:") : assembly.index(f".amdhsa_kernel {name}")]
        reports.append(
            (
                name,
                HipKernel(
                    int(fields["vgpr_count"]),
                    int(fields["vgpr_spill_count"]) + int(fields["sgpr_spill_count"]),
                    int(fields["private_segment_fixed_size"]),
                    len(re.findall(r"global_load_dwordx4", body)),
                    len(re.findall(r"global_store_dwordx4", body)),
                ),
            )
        )
    return reports
