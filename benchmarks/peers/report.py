"""What a race says, as a table for people and as JSON."""

import os
import platform
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparison import Verdict
from race import OURS, Results


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
    runs = results.runs[name, workload].values()
    if not runs:
        return f"not measured: {results.missing.get(name, '')}"
    found = results.ratio(name, workload) if name != OURS else None
    told = results.latencies.get((name, workload))
    cpu, ours = results.cpu_seconds(name, workload), results.cpu_seconds(OURS, workload)
    times = [told.first_p50, told.first_p99, told.gap_p50, told.gap_p99] if told else [None] * 4
    rate = statistics.median(results.rates(name, workload).values())
    columns = ["-" if one is None else f"{one * 1000:.0f}" for one in times]
    return (
        f"{rate:9.1f}{len(runs):5}  {str(found) if found else '':20}"
        + "".join(f"{column:>{width}}" for column, width in zip(columns, (9, 8, 9, 8), strict=True))
        + f"{cpu:8.1f}{f'{cpu / ours:.2f}' if name != OURS and ours else '':>8}"
        + f"{statistics.median(run.foreign for run in runs):8.0%}"
    )


def as_json(results: Results, verdicts: list[Verdict]) -> dict[str, Any]:
    """Everything measured, runs by round; arrivals are left out, they are long."""
    rows = []
    for (engine, workload), runs in list(results.runs.items()):
        found, told = results.ratio(engine, workload), results.latencies.get((engine, workload))
        rows.append(
            {
                "engine": engine,
                "workload": workload,
                "tokens_per_second": results.rates(engine, workload),
                "cpu_seconds": {number: run.cpu_seconds for number, run in runs.items()},
                "foreign": {number: run.foreign for number, run in runs.items()},
                "octavo_over_it": asdict(found) if found else None,
                "latencies": asdict(told) if told else None,
            }
        )
    return {
        "machine": {"cpus": os.cpu_count(), "processor": processor(), "python": platform.python_version()},
        "engines": results.versions,
        "missing": results.missing,
        "rows": rows,
        "gate": [asdict(one) for one in verdicts],
    }


def processor() -> str:
    """As Linux names it, with the widest vectors it has."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    flags = named.get("flags", "").split()
    widest = next((flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in flags), "")
    return f"{named.get('model name', platform.machine())} {widest}".strip()
