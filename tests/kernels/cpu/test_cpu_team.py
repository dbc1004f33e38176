"""The threads that share a kernel's tasks: several callers, more threads than cores, a fork, and rest when idle."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernels import cpu

ROOT = Path(__file__).resolve().parents[3]

# A parent whose helpers run, and its fork, which has none.
FORKED = """
import os, torch
from kernels import cpu
torch.set_num_threads(3)
packed, values = cpu.pack_linear(torch.randn(300, 64)), torch.randn(20, 64)
before = cpu.linear(values, packed)
child = os.fork()
if child == 0:
    os._exit(0 if all(torch.equal(cpu.linear(values, packed), before) for _ in range(20)) else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(cpu.linear(values, packed), before)
print("same")
"""


def helpers() -> list[Path]:
    tasks = Path("/proc/self/task").iterdir()
    return [task for task in tasks if (task / "comm").read_text().strip() == "octavo-kernels"]


def state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def five_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


@pytest.mark.unit
@pytest.mark.usefixtures("five_threads")
def test_callers_at_once_get_what_each_would_alone() -> None:
    """Six callers, five threads each: one has the helpers, the others do their own tasks."""
    packed = cpu.pack_linear(torch.randn(700, 96))
    inputs = [torch.randn(rows, 96) for rows in (1, 2, 7, 30, 100, 200)]
    alone = [cpu.linear(values, packed) for values in inputs]

    def repeat(index: int) -> bool:
        return all(torch.equal(cpu.linear(inputs[index], packed), alone[index]) for _ in range(50))

    with ThreadPoolExecutor(len(inputs)) as callers:
        assert all(callers.map(repeat, range(len(inputs))))


@pytest.mark.unit
@pytest.mark.usefixtures("five_threads")
def test_there_are_as_many_helpers_as_asked_for_and_they_rest() -> None:
    packed, values = cpu.pack_linear(torch.randn(700, 96)), torch.randn(50, 96)
    for threads in (2, 5, 3):
        torch.set_num_threads(threads)
        cpu.linear(values, packed)
    assert len(helpers()) == 4
    deadline = time.monotonic() + 120
    while any(state(task) != "S" for task in helpers()):
        assert time.monotonic() < deadline, "a helper without work still runs"


@pytest.mark.e2e
def test_a_forked_process_has_helpers_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "same", done.stderr
