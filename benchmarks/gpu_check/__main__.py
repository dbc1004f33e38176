"""Run by benchmarks/gpu_check.sh."""

import argparse
import secrets
import sys

import correctness
import generation
import speed
import torch
from table import Table

import kernels
from kernels import cuda


def main() -> int:
    parser = argparse.ArgumentParser(description="Every GPU kernel on a real device.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: Triton's interpreter, untimed")
    parser.add_argument("--seconds", type=float, default=220, help="no part starts that would end later than this")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of the random inputs")
    arguments = parser.parse_args()
    device, table = arguments.device, Table(arguments.seconds)
    torch.manual_seed(arguments.seed)

    name = torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter"
    heading = f"{name} · torch {torch.__version__} · {kernels.backend(device)} · seed {arguments.seed}"
    if reason := cuda.unavailable():
        heading += f"\n{reason}"
    print(heading, flush=True)

    correctness.moves(table, device)
    correctness.writes(table, device)
    correctness.attention(table, device, arguments.seed)
    if device == "cuda":
        correctness.waits(table, device)
        correctness.captured_graph(table, device)
        correctness.large_pool(table, device)
    generation.generation(table, device)
    if device == "cuda" and table.has_time_for("timings", 15):
        limit = speed.limits(table)
        for part, needed in ((speed.decode, 30), (speed.prefill, 20), (speed.moves, 15)):
            if table.has_time_for(part.__name__, needed):
                part(table, limit)
    table.show(heading)
    return 1 if table.failed or table.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
