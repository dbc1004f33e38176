"""The serving benchmark's own arithmetic: workloads, ratios, the gate, and how it hears of an engine that died."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"
pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))


def test_the_workloads_are_the_ones_that_were_agreed() -> None:
    from workloads import all_workloads

    found = all_workloads()
    shapes = {name: [(len(one.prompt), one.output) for one in workload.requests] for name, workload in found.items()}
    assert shapes["W1"] == [(128, 128)]
    assert shapes["W2"] == [(128, 128)] * 16
    assert len(shapes["W3"]) == 32
    assert all(16 <= prompt <= 512 and 16 <= output <= 256 for prompt, output in shapes["W3"])
    assert shapes["W4"] == [(1_024 + 32, 32)] * 16
    assert shapes["W5"] == [(1_536, 1)]
    # 16 * 128, the sum of 32 draws, 16 * 32; W5 counts its prompt.
    assert [workload.tokens for workload in found.values()] == [128, 2_048, 4_372, 512, 1_536]
    shared = found["W4"].requests
    assert len({tuple(one.prompt[:1_024]) for one in shared}) == 1
    assert len({tuple(one.prompt) for one in shared}) == 16
    # Other ids are another benchmark.
    ids = [token for workload in found.values() for one in workload.requests for token in one.prompt]
    assert 100 <= min(ids) <= max(ids) < 49_000
    digest = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in ids)).hexdigest()
    assert digest == "42a1ebc6b617a84d3f7132c357fffdf86790f74122f4f65c585e46b7a6250f1f"


def test_a_ratio_comes_with_its_interval() -> None:
    from comparison import geometric_mean, summarize

    steady = summarize([2.0, 2.0, 2.0])
    assert (steady.median, steady.low, steady.high, steady.pairs) == (2.0, 2.0, 2.0, 3)
    # Ten pairs of which one is 0.5: the median is 1.2, and by chance it may have been 1.1 or 1.3.
    noisy = summarize([1.2, 1.1, 1.3, 1.2, 0.5, 1.1, 1.2, 1.3, 1.2, 1.3])
    assert noisy.median == pytest.approx(1.2)
    assert 1.1 <= noisy.low < 1.2 < noisy.high <= 1.3
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_latencies_are_over_all_requests() -> None:
    from comparison import latencies

    # Gaps 0.2, 0.05, 0.15; of three values the nearest rank to 50 % is the second, to 99 % the third.
    found = latencies([[0.1, 0.3], [0.2, 0.25, 0.4], [0.7]])
    assert (found.first_p50, found.first_p99) == (0.2, 0.7)
    assert (found.gap_p50, found.gap_p99) == (pytest.approx(0.15), pytest.approx(0.2))
    alone = latencies([[1.5]])
    assert (alone.gap_p50, alone.gap_p99) == (None, None)


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({}, []),
        ({"W1": (1.04, 1.01, 10)}, ["W1"]),
        ({"W1": (1.3, 0.99, 10)}, ["W1"]),
        ({"W1": (1.3, 1.2, 9)}, ["W1"]),
        # sqrt(1.06 * 1.06) = 1.06 < 1.15
        ({"W1": (1.06, 1.02, 10), "W2": (1.06, 1.02, 10)}, ["geometric mean"]),
        ({"W2": None}, ["W2", "geometric mean"]),
        ({"missing": {"vllm": "no such folder"}}, ["vllm"]),
    ],
)
def test_the_gate_fails_for_each_of_its_reasons(changed: dict[str, Any], failed: list[str]) -> None:
    from comparison import Ratio, judge

    def row(name: str) -> Any:
        found = changed.get(name, (1.4, 1.2, 10))
        return found and ("peer", Ratio(found[0], found[1], found[0] + 0.1, found[2]))

    verdicts = judge({"W1": row("W1"), "W2": row("W2")}, changed.get("missing", {}), pairs=10)
    bad = [verdict.what for verdict in verdicts if not verdict.met]
    assert len(bad) == len(failed)
    assert all(what.startswith(start) for what, start in zip(bad, failed, strict=True))


def measured(seconds: float) -> Any:
    from engines import Measured

    return Measured(seconds, tokens=[128], arrivals=None, cpu_seconds=seconds, foreign=0.0)


def rounds(*seconds: float) -> dict[int, Any]:
    return {number: measured(taken) for number, taken in enumerate(seconds)}


def test_ratios_are_of_the_same_round() -> None:
    from race import Results
    from workloads import all_workloads

    results = Results({"W1": all_workloads()["W1"]})
    # The machine slows down threefold in round 1; the peer was left out of round 2.
    results.runs["octavo", "W1"] = rounds(1.0, 3.0, 1.0, 1.0)
    results.runs["vllm", "W1"] = {0: measured(2.0), 1: measured(6.0), 3: measured(2.5)}
    assert results.ratios("vllm", "W1") == pytest.approx([2.0, 2.0, 2.5])
    assert results.rates("vllm", "W1")[3] == pytest.approx(128 / 2.5)
    assert results.ratio("openvino", "W1") is None


def test_only_a_peer_beaten_by_far_is_settled_and_never_the_fastest() -> None:
    from race import Results
    from workloads import all_workloads

    results = Results({"W1": all_workloads()["W1"]})
    results.runs["octavo", "W1"] = rounds(*[1.0] * 3)
    results.runs["openvino", "W1"] = rounds(*[2.5] * 3)  # 2.5 times in three rounds, but the fastest peer
    results.runs["vllm", "W1"] = rounds(*[2.6] * 3)  # settled by three rounds
    results.runs["llama.cpp", "W1"] = rounds(2.6, 2.6)
    results.runs["transformers", "W1"] = rounds(4.5)  # settled by one
    results.runs["transformers-continuous", "W1"] = rounds(2.6, 1.9, 2.6)
    results.runs["octavo-engine", "W1"] = rounds(*[9.0] * 3)  # ours, in another form: its ratio is wanted in full
    found = {engine: results.settled(engine, "W1") for engine, _ in list(results.runs)}
    assert [engine for engine, settled in found.items() if settled] == ["vllm", "transformers"]
    assert results.fastest_peer("W1") == "openvino"
    # Peers nobody asked for, workloads nobody ran: all of it fails the gate.
    whats = " ".join(verdict.what for verdict in results.verdicts(10) if not verdict.met)
    assert all(name in whats for name in ("W2", "W5", "vllm is missing", "llama.cpp is missing"))


ENGINE = """
import sys
from line_protocol import Stopwatch, answer_runs

def run(requests, latencies):
    print("a library's chatter")
    if len(requests) == 3:
        sys.exit("out of memory")
    watch = Stopwatch(len(requests))
    for number, request in enumerate(requests):
        for _ in range(request.output):
            watch.took(number, 1)
    return watch.outcome()

answer_runs(lambda: ("tiny 1.0", "none", run))
"""


def test_an_engine_answers_line_by_line_until_it_dies(tmp_path: Path) -> None:
    from engines import EngineMissing, EngineProcess, Launch
    from workloads import Request

    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    with EngineProcess(Launch([sys.executable, str(script)], {"PYTHONPATH": str(PEERS)})) as engine:
        assert (engine.version, engine.settings) == ("tiny 1.0", "none")
        found = engine.run([Request([1, 2], 3), Request([4], 1)])
        assert found.tokens == [3, 1]
        assert found.arrivals is not None
        assert all(0 <= arrival <= found.seconds for times in found.arrivals for arrival in times)
        with pytest.raises(EngineMissing, match=r"status 1: .*out of memory"):
            engine.run([Request([1], 1)] * 3)


def test_an_environment_that_was_not_made_is_named(tmp_path: Path) -> None:
    from engines import ENGINES, EngineMissing, launch

    for name in ENGINES:
        if name.startswith("octavo"):
            assert Path(launch(name, tmp_path, tmp_path, []).command[1]).is_file()
        else:
            with pytest.raises(EngineMissing, match=r"setup\.sh"):
                launch(name, tmp_path, tmp_path, [])
