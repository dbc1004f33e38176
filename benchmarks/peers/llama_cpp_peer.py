"""llama.cpp in process: its library behind a small program of ours that batches continuously, on a BF16 GGUF.

Its own offline tools batch only prompts of one length. Where sequences share a prefix, each computes it, as in
llama-server.
"""

import argparse
import os
import subprocess
from pathlib import Path

from line_protocol import Outcome, Run, answer_runs, start_server
from workloads import Request


def load() -> tuple[str, str, Run]:
    parser = argparse.ArgumentParser()
    parser.add_argument("driver", type=Path, help="llama-driver, built by setup.sh")
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--threads", default=str(os.cpu_count()))
    options = parser.parse_args()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    driver = start_server([options.driver, options.model, options.threads], **pipes)
    stdin, stdout = driver.stdin, driver.stdout
    assert stdin is not None
    assert stdout is not None

    def read() -> str:
        line = stdout.readline()
        if not line:
            raise SystemExit(f"llama-driver ended with status {driver.wait()}")
        return line

    features = read().replace(" = 1 |", "").strip()

    def run(requests: list[Request], latencies: bool) -> Outcome:
        rows = [" ".join(map(str, (one.output, len(one.prompt), *one.prompt))) for one in requests]
        print(len(requests), *rows, sep="\n", file=stdin, flush=True)
        arrivals = [[float(time) for time in read().split()] for _ in requests]
        return Outcome(max(times[-1] for times in arrivals), [len(times) for times in arrivals], arrivals)

    version = (options.driver.parent / "version").read_text().strip()
    return f"llama.cpp of llama-cpp-python {version}", f"BF16, {features}", run


if __name__ == "__main__":
    answer_runs(load)
