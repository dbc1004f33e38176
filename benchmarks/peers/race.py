"""Engines in turns: who runs what when, and what is known of each so far."""

import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field

from comparison import Latencies, Ratio, Verdict, judge, latencies, summarize
from engines import SIXTEEN_BIT_PEERS, EngineMissing, EngineProcess, Measured
from workloads import Request, Workload, all_workloads

OURS = "octavo"
REQUIRED_PEERS = ("vllm", "openvino", "llama.cpp")
# Beaten at least so many times over in each of so many rounds, a peer's ratio is known well enough.
FAR = ((4.0, 1), (2.0, 3), (1.3, 5))
WARM_UP_TOKENS = 4


@dataclass(slots=True)
class Results:
    """Every run by engine and workload, then by round; latencies; and what went wrong."""

    workloads: dict[str, Workload]
    runs: dict[tuple[str, str], dict[int, Measured]] = field(default_factory=lambda: defaultdict(dict))
    latencies: dict[tuple[str, str], Latencies] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def rates(self, engine: str, workload: str) -> dict[int, float]:
        """Tokens per second, by round."""
        runs = self.runs[engine, workload]
        return {number: self.workloads[workload].tokens / run.seconds for number, run in runs.items()}

    def cpu_seconds(self, engine: str, workload: str) -> float:
        """Median processor time of a run, 0 without one."""
        return statistics.median([run.cpu_seconds for run in self.runs[engine, workload].values()] or [0.0])

    def ratios(self, engine: str, workload: str) -> list[float]:
        """Ours over an engine's, of the rounds that have both."""
        ours, theirs = self.rates(OURS, workload), self.rates(engine, workload)
        return [ours[number] / rate for number, rate in theirs.items() if number in ours]

    def ratio(self, engine: str, workload: str) -> Ratio | None:
        """The same in short; None without a pair."""
        ratios = self.ratios(engine, workload)
        return summarize(ratios) if ratios else None

    def fastest_peer(self, workload: str) -> str | None:
        """Of the 16-bit peers measured."""
        rates = {peer: list(self.rates(peer, workload).values()) for peer in SIXTEEN_BIT_PEERS}
        medians = {peer: statistics.median(found) for peer, found in rates.items() if found}
        return max(medians, key=lambda peer: medians[peer]) if medians else None

    def settled(self, engine: str, workload: str) -> bool:
        """Whether another run of a peer would tell nothing new."""
        if engine.startswith(OURS) or engine == self.fastest_peer(workload):
            return False
        ratios = self.ratios(engine, workload)
        return any(len(ratios) >= rounds and min(ratios) >= times for times, rounds in FAR)

    def verdicts(self, pairs: int) -> list[Verdict]:
        """The gate over all workloads and peers, asked for or not."""
        missing = {
            peer: self.missing.get(peer, "not asked for")
            for peer in REQUIRED_PEERS
            if peer in self.missing or peer not in self.versions
        }
        fastest: dict[str, tuple[str, Ratio] | None] = {}
        for name in all_workloads():
            peer = self.fastest_peer(name)
            found = self.ratio(peer, name) if peer else None
            fastest[name] = (peer, found) if peer and found else None
        return judge(fastest, missing, pairs)


class Race:
    """The engines that run, in turns."""

    def __init__(self, engines: dict[str, EngineProcess], results: Results) -> None:
        self._engines = engines
        self._results = results

    def warm_up(self) -> None:
        """A few tokens of a lone prompt and of a batch: memory touched, kernels chosen, graphs compiled."""
        for workload in list(self._results.workloads.values())[:2]:
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
                        self._results.runs[name, workload.name][number] = measured

    def read_latencies(self) -> None:
        """Of the last run of each engine that tells them."""
        for key, runs in self._results.runs.items():
            last = runs[max(runs)] if runs else None
            if last and last.arrivals:
                self._results.latencies[key] = latencies(last.arrivals)

    def run_for_latencies(self) -> None:
        """One more run, not counted as a rate, of each engine that told none and whose rate is not settled."""
        for workload in self._results.workloads.values():
            for name in list(self._engines):
                if (name, workload.name) not in self._results.latencies and not self._results.settled(
                    name, workload.name
                ):
                    measured = self._measure(name, workload, workload.requests, latencies=True)
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
        print(
            f"  {workload.name} {name:24}{told}  {measured.seconds:6.1f} s, {measured.cpu_seconds:.1f} s of CPU",
            file=sys.stderr,
            flush=True,
        )
        return measured
