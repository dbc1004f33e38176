"""Arguments at the edges of what is allowed: strides, contexts of 0, huge numbers; threads; memory given back."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from paged_cases import LAYER, PagedCase, paged_case, relative_error
from torch.nn import functional

from kernels import Activation, RaggedBatch, cpu, reference

MIB = 2**20


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def decode_and_chunk() -> PagedCase:
    """A decode over two parts of keys, and a chunk of 5."""
    return paged_case([(1, 300), (5, 90)], 16, (4, 2), 64)


@pytest.mark.unit
@pytest.mark.parametrize("soft_cap", [1.0, 30.0, 1e3, 1e4, 1e5, 1e6, 1e7])
def test_a_soft_cap_is_accurate_however_large(soft_cap: float, decode_and_chunk: PagedCase) -> None:
    """1 - 2 / (e^2x + 1) loses all digits of tanh x below x = 1e-7."""
    case = decode_and_chunk
    actual = cpu.paged_attention(case.query, case.pool, LAYER, case.batch, scale=0.5, soft_cap=soft_cap)
    assert relative_error(actual, case.exact(0.5, soft_cap=soft_cap)) < 1e-5


@pytest.mark.unit
def test_sinks_and_norm_weights_may_have_strides(decode_and_chunk: PagedCase) -> None:
    case = decode_and_chunk
    for sinks in (torch.randn(8)[::2], torch.tensor(3.0).expand(4)):
        actual = cpu.paged_attention(case.query, case.pool, LAYER, case.batch, scale=0.1, sinks=sinks)
        assert relative_error(actual, case.exact(0.1, sinks=sinks)) < 1e-5
    hidden = torch.randn(2, 64)
    for weight in (torch.randn(128)[::2], torch.tensor(2.0).expand(64)):
        expected = functional.rms_norm(hidden, (64,), weight.contiguous(), 1e-5)
        assert relative_error(cpu.add_rms_norm(hidden, None, weight, 1e-5), expected) < 1e-5


@pytest.mark.unit
@pytest.mark.parametrize("sinks", [None, torch.ones(4)])
def test_no_context_on_the_device_gives_zeros(sinks: torch.Tensor | None, decode_and_chunk: PagedCase) -> None:
    """Also where it is shorter than the chunk: of 5 tokens ending at 2, the first 3 see nothing."""
    case = decode_and_chunk
    case.batch.context_lengths.copy_(torch.tensor([0, 2]))
    actual = cpu.paged_attention(case.query, case.pool, LAYER, case.batch, scale=0.1, sinks=sinks)
    assert torch.equal(actual[:4], torch.zeros(4, 4, 64))
    assert bool(actual[4:].isfinite().all())
    assert bool((actual[4:] != 0).all())


@pytest.mark.unit
@pytest.mark.parametrize("starts", [[0, 1, 7], [-1, 1, 6], [0, 7, 6]])
def test_tokens_that_are_not_there_are_refused(starts: list[int], decode_and_chunk: PagedCase) -> None:
    case = decode_and_chunk
    case.batch.query_starts.copy_(torch.tensor(starts))
    with pytest.raises(IndexError):
        cpu.paged_attention(case.query, case.pool, LAYER, case.batch, scale=0.1)


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates_far_below_zero_are_shut(dtype: torch.dtype, activation: Activation) -> None:
    """x / (1 + e^-x) with the largest e^88 would be -0.6 at -1e38. Of one input, the gate is x, and up is 1."""
    gates = torch.tensor([-90.0, -1e3, -1e38, -3e38, torch.nan, 2.0], dtype=dtype)
    packed = cpu.pack_gated_linear(torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 1.0]), activation)
    shut, undefined, open_gate = cpu.linear(gates[:, None], packed)[:, 0].split([4, 1, 1])
    assert torch.equal(shut, torch.zeros(4, dtype=dtype))
    assert bool(undefined.isnan())
    assert 1.7 < float(open_gate) < 2.0


@pytest.mark.unit
@pytest.mark.parametrize("width", [1, 16])
def test_silu_of_huge_negatives(width: int) -> None:
    """A register of them, and the rest of a row."""
    for gate, expected in ((-1e38, 0.0), (-torch.inf, 0.0), (torch.nan, torch.nan)):
        product = cpu.silu_mul(torch.tensor([gate, 1.0]).repeat_interleave(width)[None])
        assert torch.equal(product.nan_to_num(7.0), torch.full((1, width), expected).nan_to_num(7.0))


@pytest.mark.unit
def test_threads_may_share_a_batch() -> None:
    """What is kept in the batch held the addresses of one caller's query and output while another one filled it in."""
    tables = [list(range(1, 101))] * 4
    pool = torch.randn(101, 1, 2, 2, 16, 64)
    shared = RaggedBatch.of([1] * 4, [1600] * 4, tables)
    queries = list(torch.randn(2, 4, 4, 64))
    expected = [cpu.paged_attention(query, pool, 0, shared, scale=0.1) for query in queries]
    wrong = [0, 0]

    def attend(caller: int) -> None:
        for _ in range(300):
            actual = cpu.paged_attention(queries[caller], pool, 0, shared, scale=0.1)
            wrong[caller] += not torch.equal(actual, expected[caller])

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    callers = [threading.Thread(target=attend, args=(caller,)) for caller in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    torch.set_num_threads(before)
    assert wrong == [0, 0]


# 512 x 4,096 values of bfloat16 are widened into 8 MiB: 20 threads would leave 160.
THREADS_COME_AND_GO = """
import resource, threading, torch
from kernels import cpu
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
values, packed = torch.ones(512, 4096).bfloat16(), cpu.pack_linear(torch.ones(16, 4096).bfloat16())
before = resident()
for _ in range(20):
    thread = threading.Thread(target=cpu.linear, args=(values, packed))
    thread.start()
    thread.join()
print(resident() - before)
"""


@pytest.mark.e2e
def test_what_a_thread_computed_in_is_freed_with_it() -> None:
    """In a process of its own: what the allocator keeps of freed memory depends on all that was freed there before."""
    done = subprocess.run([sys.executable, "-c", THREADS_COME_AND_GO], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60 * MIB


@pytest.mark.unit
def test_what_one_large_call_needed_is_given_back() -> None:
    """8,192 x 4,096 values are widened into 128 MiB, one row into 16 KiB: 1,024 such calls later the rest is free."""
    packed = cpu.pack_linear(torch.ones(16, 4096).bfloat16())
    cpu.linear(torch.ones(8192, 4096).bfloat16(), packed)
    before, row = resident(), torch.ones(1, 4096).bfloat16()
    for _ in range(1030):
        cpu.linear(row, packed)
    assert before - resident() > 100 * MIB


# 100,000 x 512 values are widened into 195 MiB, with 100 to be had.
STARVED = """
import resource, torch
from kernels import cpu
values, packed = torch.ones(100_000, 512).bfloat16(), cpu.pack_linear(torch.ones(16, 512).bfloat16())
torch.set_num_threads(1)
cpu.linear(values[:1], packed)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 100 * 2**20, resource.RLIM_INFINITY))
try:
    cpu.linear(values, packed)
except MemoryError as error:
    print(error)
print(float(cpu.linear(values[:1], packed)[0, 0]))
"""


@pytest.mark.e2e
def test_no_memory_to_compute_in_is_an_error_and_not_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["the CPU kernels found no memory to compute in", "512.0"], done.stderr[-1000:]


@pytest.mark.unit
def test_weights_of_another_backend_are_refused() -> None:
    packed = cpu.pack_linear(torch.ones(16, 64))
    with pytest.raises(ValueError, match="packed by the cpu kernels"):
        reference.linear(torch.ones(1, 64), packed)
    with pytest.raises(ValueError, match="packed by the cpu kernels"):
        reference.embedding(torch.tensor([1]), packed)
