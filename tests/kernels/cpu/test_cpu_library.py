"""The library as a file: built, refused, chosen; and run under the sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.cpu import build, library
from kernels.cpu.memory import HUGE_PAGE, Arena, huge_zeros

ROOT = Path(__file__).resolve().parents[3]

# Prints the choice, then how often it was warned about over two calls.
CHOICE = """
import logging, torch
records = []
class Keep(logging.Handler):
    def emit(self, record): records.append(record)
logging.getLogger("kernels.backend").addHandler(Keep())
import kernels
from kernels.cpu import build
from pathlib import Path
if LIBRARY: build.LIBRARY = Path(LIBRARY)
print(kernels.backend())
kernels.argmax(torch.zeros(1, 4)); kernels.argmax(torch.zeros(1, 4))
print(len([record for record in records if record.levelno >= logging.WARNING]))
"""


def choose(library_path: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("OCTAVO_KERNELS", "OCTAVO_CPU_ISA")}
    script = CHOICE.replace("LIBRARY:", f"{library_path!r}:").replace("(LIBRARY)", f"({library_path!r})")
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=clean | environ, capture_output=True, text=True, check=False
    )


@pytest.mark.e2e
def test_the_choice_is_explained() -> None:
    said = choose()
    assert said.stdout.splitlines() == [
        f"cpu kernels on cpu: {library.kernels().isa} on {torch.get_num_threads()} threads",
        "0",
    ]


@pytest.mark.e2e
def test_without_the_library_the_reference_runs_and_says_so_once(tmp_path: Path) -> None:
    line, warnings = choose(str(tmp_path / "absent.so")).stdout.splitlines()
    assert line.startswith("reference kernels on cpu: not cpu, because its library was not built")
    assert "python -m kernels.cpu.build" in line
    assert warnings == "1"


@pytest.mark.e2e
def test_a_library_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_text("no library")
    assert "its library does not load" in choose(str(tmp_path / "broken.so")).stdout


@pytest.mark.e2e
@pytest.mark.parametrize("kept", [0.99, 0.5, 0.001])
def test_a_library_that_is_cut_short_does_not_end_the_process(tmp_path: Path, kept: float) -> None:
    """The loader maps what the file says it has; touching a page behind its end is SIGBUS."""
    assert not library.cut_short(build.LIBRARY)
    whole = build.LIBRARY.read_bytes()
    (tmp_path / "short.so").write_bytes(whole[: int(len(whole) * kept)])
    said = choose(str(tmp_path / "short.so"))
    assert "the file is cut short" in said.stdout or kept == 0.99
    assert said.returncode == 0


@pytest.mark.e2e
def test_a_backend_can_be_forced() -> None:
    assert choose(OCTAVO_KERNELS="reference").stdout.splitlines() == [
        "reference kernels on cpu: asked for by OCTAVO_KERNELS",
        "0",
    ]
    assert "no such backend; there are triton, interpret, cpu, reference" in choose(OCTAVO_KERNELS="gpu").stderr
    assert "OCTAVO_KERNELS=triton: it does not take tensors on cpu" in choose(OCTAVO_KERNELS="triton").stderr
    assert "TRITON_INTERPRET=1 must be set" in choose(OCTAVO_KERNELS="interpret").stderr
    lacking = choose(OCTAVO_KERNELS="cpu", OCTAVO_CPU_ISA="vax")
    assert "OCTAVO_KERNELS=cpu: OCTAVO_CPU_ISA=vax: no such instruction set; there are" in lacking.stderr


@pytest.mark.unit
def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler: no-such-compiler not found"):
        build.build(tmp_path / "library.so")
    monkeypatch.setenv("CXX", "false --with arguments")
    with pytest.raises(build.BuildError, match="failed: exit status 1"):
        build.build(tmp_path / "library.so")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.unit
def test_what_editors_leave_beside_the_sources_does_not_make_the_library_stale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = Path(shutil.copytree(build.SOURCES, tmp_path / "src"))
    before = build.sources_digest()
    monkeypatch.setattr(build, "SOURCES", sources)
    for name in ("decode.h~", "notes.txt", ".decode.h"):
        (sources / name).write_text("not compiled")
    assert build.sources_digest() == before
    (sources / "more.h").write_text("compiled")
    assert build.sources_digest() != before


@pytest.mark.unit
def test_denormals_survive_the_library() -> None:
    """-ffast-math would link code that flushes them for the whole process."""
    library.kernels()
    assert float(torch.tensor(5e-40) * torch.tensor(1.0)) > 0


@pytest.mark.unit
def test_memory_is_aligned_zeroed_and_independent() -> None:
    whole = huge_zeros(3 * HUGE_PAGE + 5)
    assert whole.data_ptr() % HUGE_PAGE == 0
    assert whole.numel() == 3 * HUGE_PAGE + 5
    assert not whole.any()
    arena = Arena()
    tensors = [arena.empty((7, size), torch.float32).fill_(size) for size in (1, 1000, 10_000_000, 3)]
    for tensor, size in zip(tensors, (1, 1000, 10_000_000, 3), strict=True):
        assert tensor.data_ptr() % 64 == 0
        assert bool((tensor == size).all())


# Runs in a process of its own, with the sanitizers loaded before everything else.
SANITIZED = """
import sys
from pathlib import Path
from kernels.cpu import build
build.LIBRARY = Path(sys.argv[1])
import torch
from kernels import PoolShape, RaggedBatch, cpu, reference
from kernels.cpu import library
assert library.why_not() is None, library.why_not()
torch.set_num_threads(2)
torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16):
    for heads, kv_heads, dim, block in ((9, 3, 64, 16), (5, 1, 80, 7), (4, 4, 32, 1)):
        pool = reference.allocate_pool(PoolShape(700 // block + 40, 2, kv_heads, block, dim, dtype)).normal_()
        lengths, contexts = [1, 70, 1, 3], [300, 130, 1, 40]
        tables, block_id = [], 1
        for context in contexts:
            blocks = -(-context // block)
            tables.append(list(range(block_id, block_id + blocks)))
            block_id += blocks
        batch = RaggedBatch.of(lengths, contexts, tables)
        qkv = torch.randn(75, heads + 2 * kv_heads, dim).to(dtype)
        query = qkv[:, :heads]
        turn = torch.ones(75, dim // 2)
        cpu.write_rotated_kv(
            pool, 1, query, qkv[:, heads:-kv_heads], qkv[:, -kv_heads:], torch.arange(75) + block, turn, turn
        )
        for window in (None, 17):
            cpu.paged_attention(query, pool, 1, batch, scale=0.1, window=window, sinks=torch.zeros(heads), soft_cap=5.0)
    for rows in (1, 7, 100):
        for out, inner in ((33, 257), (16, 5)):
            values = torch.randn(rows, inner).to(dtype)
            cpu.linear(values, cpu.pack_linear(torch.randn(out, inner).to(dtype), torch.randn(out).to(dtype)))
            cpu.linear(values, cpu.pack_gated_linear(torch.randn(2 * out, inner).to(dtype)))
            for quantization in ("int8", "int4"):
                for width in (inner, 288):
                    packed = cpu.pack_linear(torch.randn(out, width).to(dtype), None, quantization)
                    cpu.linear(torch.randn(rows, width).to(dtype), packed)
                    cpu.embedding(torch.arange(out), packed)
            cpu.add_rms_norm(values, values.clone(), torch.randn(inner).to(dtype), 1e-5)
            cpu.silu_mul(torch.randn(rows, 2 * out).to(dtype))
cpu.top_k(torch.randn(3, 1001), 17)
print("clean")
"""


@pytest.mark.e2e
def test_the_kernels_are_clean_under_address_and_undefined_sanitizers(tmp_path: Path) -> None:
    options = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g1")
    built = build.build(tmp_path / "sanitized.so", options)
    preload = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environ = os.environ | {
        "LD_PRELOAD": preload.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(built)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "clean", done.stderr[-3000:]
