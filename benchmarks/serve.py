"""Octavo beside other engines on five workloads, in turns in one run; docs/performance.md says how to read it.

    benchmarks/peers/setup.sh PEERS          makes the other engines' environments, once
    python benchmarks/serve.py --peers PEERS [--engines octavo vllm ...] [--workloads W1 ...] [--pairs 10] [--json FILE]

Each engine is a process that loads once and then waits; one computes at a time. Every round runs each workload on each
engine, each round beginning with another engine. Ratios are taken within a round. A peer that is beaten by far is asked
less often (race.FAR), never the fastest of a workload. Ends with status 1 unless the gate is met.
"""

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

from engines import ENGINES, EngineMissing, EngineProcess, launch  # noqa: E402
from race import OURS, REQUIRED_PEERS, Race, Results  # noqa: E402
from report import as_json, print_table, processor  # noqa: E402
from workloads import all_workloads  # noqa: E402

DEFAULT = (OURS, *REQUIRED_PEERS)
# The pairs that a gate between two engines takes.
PAIRS = 10


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder that setup.sh made")
    parser.add_argument("--model", type=Path, default=HERE.parent / "models" / "smollm2")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(DEFAULT))
    parser.add_argument("--workloads", nargs="+", default=list(all_workloads()), choices=list(all_workloads()))
    parser.add_argument("--pairs", type=int, default=PAIRS, help="rounds")
    parser.add_argument("--no-latencies", action="store_true", help="no extra run for engines that answer at the end")
    parser.add_argument("--cut", type=int, metavar="N", help="prompts and outputs of at most N tokens: a trial run")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--octavo", default="", metavar="FLAGS", help="further flags of octavo serve, in one word")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    everything = all_workloads()
    chosen = {name: everything[name] for name in options.workloads}
    results = Results({name: one.cut(options.cut) if options.cut else one for name, one in chosen.items()})
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
        if OURS not in running:
            raise SystemExit(f"{OURS} did not start: nothing to compare with")
        race = Race(running, results)
        race.warm_up()
        for number in range(options.pairs):
            race.round(number)
        race.read_latencies()
        if not options.no_latencies:
            race.run_for_latencies()
    verdicts = [] if options.cut else results.verdicts(PAIRS)
    print(f"\n{processor()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {time.monotonic() - began:.0f} s")
    for name, version in results.versions.items():
        print(f"  {name:24}{version}")
    print_table(results, asked)
    print("\ngate over the fastest 16-bit peer:" if verdicts else "\ncut short: no gate")
    print("".join(f"  {verdict}\n" for verdict in verdicts), end="")
    if options.json:
        options.json.write_text(json.dumps(as_json(results, verdicts), indent=1) + "\n")
    sys.exit(0 if not results.missing and all(verdict.met for verdict in verdicts) else 1)


if __name__ == "__main__":
    main()
