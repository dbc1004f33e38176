"""Octavo beside other engines on five workloads, in turns in one run; docs/performance.md says how to read it.

    benchmarks/peers/setup.sh PEERS          makes the other engines' environments, once
    python benchmarks/serve.py --peers PEERS [--engines octavo vllm ...] [--workloads W1 ...] [--pairs 10] [--json FILE]

Each engine is a process that loads once and then waits; one computes at a time. Every round runs each workload on each
engine, each round beginning with another engine. Ratios are taken within a round. A peer that is beaten by far is asked
less often (see FAR), never the fastest of a workload. Ends with status 1 unless the gate is met.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

from comparison import Latencies, Ratio, Verdict, judge, latencies, ratio  # noqa: E402
from engines import ENGINES, SIXTEEN_BIT_PEERS, EngineMissing, EngineProcess, Measured, launch  # noqa: E402
from workloads import Request, Workload, all_workloads  # noqa: E402

OURS = "octavo"
DEFAULT = ("octavo", "vllm", "openvino", "llama.cpp", "transformers")
# Beaten at least so many times over in each of so many rounds, a peer's ratio is known well enough.
FAR = ((4.0, 1), (2.0, 3))
# The pairs that a gate between two engines takes.
PAIRS = 10
WARM_UP_TOKENS = 4


@dataclass(slots=True)
class Results:
    """Every run by engine and workload, latencies, and what went wrong."""

    workloads: dict[str, Workload]
    runs: dict[tuple[str, str], list[Measured]] = field(default_factory=lambda: defaultdict(list))
    latencies: dict[tuple[str, str], Latencies] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def rates(self, engine: str, workload: str) -> list[float]:
        """Tokens per second, by round."""
        return [self.workloads[workload].tokens / run.seconds for run in self.runs[engine, workload]]

    def cpu_seconds(self, engine: str, workload: str) -> float:
        """Median processor time of a run, 0 without one."""
        return statistics.median([run.cpu_seconds for run in self.runs[engine, workload]] or [0.0])

    def ratio(self, engine: str, workload: str) -> Ratio | None:
        """Ours over an engine's; None when one was not measured."""
        ours, theirs = self.rates(OURS, workload), self.rates(engine, workload)
        return ratio(ours, theirs) if ours and theirs else None

    def fastest_peer(self, workload: str) -> str | None:
        """Of the 16-bit peers measured."""
        rates = {peer: self.rates(peer, workload) for peer in SIXTEEN_BIT_PEERS}
        medians = {peer: statistics.median(found) for peer, found in rates.items() if found}
        return max(medians, key=lambda peer: medians[peer]) if medians else None

    def settled(self, engine: str, workload: str) -> bool:
        """Whether another run of a peer would tell nothing new."""
        if engine not in SIXTEEN_BIT_PEERS or engine == self.fastest_peer(workload):
            return False
        ours, theirs = self.rates(OURS, workload), self.rates(engine, workload)
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=False)]
        return any(len(ratios) >= rounds and min(ratios) >= times for times, rounds in FAR)

    def verdicts(self, asked: list[str], pairs: int) -> list[Verdict]:
        fastest = {}
        for name in self.workloads:
            peer = self.fastest_peer(name)
            found = self.ratio(peer, name) if peer else None
            if peer and found:
                fastest[name] = (peer, found)
        return judge(fastest, {name: why for name, why in self.missing.items() if name in asked}, pairs)


class Race:
    """The engines that run, in turns."""

    def __init__(self, engines: dict[str, EngineProcess], results: Results) -> None:
        self._engines = engines
        self._results = results

    def warm_up(self) -> None:
        """A few tokens of every workload: memory touched, kernels chosen, graphs compiled."""
        for workload in self._results.workloads.values():
            shortened = [Request(one.prompt, min(one.output, WARM_UP_TOKENS)) for one in workload.requests]
            for name in list(self._engines):
                self._measure(name, workload, shortened)

    def round(self, number: int) -> None:
        """Every workload on every engine that has something left to tell."""
        for workload in self._results.workloads.values():
            names = list(self._engines)
            first = number % max(len(names), 1)
            for name in names[first:] + names[:first]:
                if not self._results.settled(name, workload.name):
                    measured = self._measure(name, workload, workload.requests)
                    if measured:
                        self._results.runs[name, workload.name].append(measured)

    def time_tokens(self) -> None:
        """Latencies: of the last run where it tells them, else of one more run that is not counted as a rate."""
        for workload in self._results.workloads.values():
            for name in list(self._engines):
                runs = self._results.runs[name, workload.name]
                measured = runs[-1] if runs and runs[-1].arrivals else None
                measured = measured or self._measure(name, workload, workload.requests, latencies=True)
                if measured and measured.arrivals:
                    self._results.latencies[name, workload.name] = latencies(measured.arrivals)

    def _measure(
        self, name: str, workload: Workload, requests: list[Request], latencies: bool = False
    ) -> Measured | None:
        """One run; an engine that fails it is out of the race."""
        try:
            measured = self._engines[name].run(requests, latencies)
            wanted = [one.output for one in requests]
            if measured.tokens != wanted:
                raise EngineMissing(f"{workload.name}: generated {measured.tokens}, not {wanted}")
        except EngineMissing as error:
            del self._engines[name]
            self._results.missing[name] = str(error)
            return None
        rate = workload.tokens / measured.seconds if requests is workload.requests else None
        told = f"{rate:8.1f} tokens/s" if rate else "   warm-up"
        print(f"  {workload.name} {name:24}{told}  {measured.seconds:6.1f} s", file=sys.stderr, flush=True)
        return measured


def print_table(results: Results, engines: list[str]) -> None:
    """One block per workload."""
    for workload in results.workloads.values():
        unit = "prompt" if workload.counts_prompts else "output"
        print(f"\n{workload.name}  {workload.title}; {unit} tokens/s, median")
        print(
            f"  {'':24}{'tokens/s':>9}{'runs':>5}  {'octavo / it (95 %)':20}{'first token ms':>17}{'next token ms':>17}"
            f"{'CPU s':>8}{'by CPU':>8}{'others':>8}"
        )
        print(f"  {'':24}{'':9}{'':5}  {'':20}{'p50':>9}{'p99':>8}{'p50':>9}{'p99':>8}")
        for name in engines:
            print(f"  {name:24}{_row(results, name, workload.name)}")


def _row(results: Results, name: str, workload: str) -> str:
    runs = results.runs[name, workload]
    if not runs:
        return f"not measured: {results.missing.get(name, '')}"
    found = results.ratio(name, workload) if name != OURS else None
    told = results.latencies.get((name, workload))
    cpu, ours = results.cpu_seconds(name, workload), results.cpu_seconds(OURS, workload)
    times = [told.first_p50, told.first_p99, told.gap_p50, told.gap_p99] if told else [None] * 4
    columns = ["-" if one is None else f"{one * 1000:.0f}" for one in times]
    return (
        f"{statistics.median(results.rates(name, workload)):9.1f}{len(runs):5}  {str(found) if found else '':20}"
        + "".join(f"{column:>{width}}" for column, width in zip(columns, (9, 8, 9, 8), strict=True))
        + f"{cpu:8.1f}{f'{cpu / ours:.2f}' if name != OURS and ours else '':>8}"
        + f"{statistics.median(run.foreign for run in runs):8.0%}"
    )


def as_json(results: Results, verdicts: list[Verdict]) -> dict[str, Any]:
    """Everything measured; arrivals are left out, they are long."""
    rows = []
    for (engine, workload), runs in results.runs.items():
        found, told = results.ratio(engine, workload), results.latencies.get((engine, workload))
        rows.append(
            {
                "engine": engine,
                "workload": workload,
                "tokens_per_second": results.rates(engine, workload),
                "cpu_seconds": [run.cpu_seconds for run in runs],
                "foreign": [run.foreign for run in runs],
                "octavo_over_it": asdict(found) if found else None,
                "latencies": asdict(told) if told else None,
            }
        )
    return {
        "machine": {"cpus": os.cpu_count(), "processor": _processor(), "python": platform.python_version()},
        "engines": results.versions,
        "missing": results.missing,
        "rows": rows,
        "gate": [asdict(one) for one in verdicts],
    }


def _processor() -> str:
    """As Linux names it, with the widest vectors it has."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    flags = named.get("flags", "").split()
    widest = next((flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in flags), "")
    return f"{named.get('model name', platform.machine())} {widest}".strip()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder that setup.sh made")
    parser.add_argument("--model", type=Path, default=HERE.parent / "models" / "smollm2")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(DEFAULT))
    parser.add_argument("--workloads", nargs="+", default=list(all_workloads()), choices=list(all_workloads()))
    parser.add_argument("--pairs", type=int, default=PAIRS, help="rounds")
    parser.add_argument("--no-latencies", action="store_true", help="no extra run for engines that answer at the end")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--octavo", default="", metavar="FLAGS", help="further flags of octavo serve, in one word")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    everything = all_workloads()
    results = Results({name: everything[name] for name in options.workloads})
    asked = list(dict.fromkeys([OURS, *options.engines]))
    began = time.monotonic()
    with ExitStack() as stack:
        running: dict[str, EngineProcess] = {}
        for name in asked:
            try:
                start = launch(name, options.model.resolve(), options.peers.resolve(), options.octavo.split())
                running[name] = stack.enter_context(EngineProcess(start))
            except EngineMissing as error:
                results.missing[name] = str(error)
                print(f"  {name}: {error}", file=sys.stderr)
            else:
                results.versions[name] = f"{running[name].version}, {running[name].settings}"
                print(f"  {name}: {results.versions[name]}", file=sys.stderr, flush=True)
        race = Race(running, results)
        race.warm_up()
        for number in range(options.pairs):
            race.round(number)
        if not options.no_latencies:
            race.time_tokens()
    verdicts = results.verdicts(asked, PAIRS)
    print(f"\n{_processor()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {time.monotonic() - began:.0f} s")
    for name, version in results.versions.items():
        print(f"  {name:24}{version}")
    print_table(results, asked)
    print(f"\ngate, 16-bit peers, {PAIRS} pairs:")
    print("\n".join(f"  {verdict}" for verdict in verdicts))
    if options.json:
        options.json.write_text(json.dumps(as_json(results, verdicts), indent=1) + "\n")
    sys.exit(0 if verdicts and all(verdict.met for verdict in verdicts) else 1)


if __name__ == "__main__":
    main()
