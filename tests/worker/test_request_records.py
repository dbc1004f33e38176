"""What the worker keeps of its requests for those who watch it: the steps of a traced one, how each ended, and how long
things took.
"""

import contextlib
from itertools import pairwise

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from model_worker.engine.history import History, Ranges
from model_worker.engine.sequence import EndReason, Sequence
from model_worker.request_counts import RequestCounts
from model_worker.sampling.params import SamplingParams, StopConditions
from service.errors import ServiceError
from service.histograms import Times


def sequence(arrived: float = 10.0, first_step: float = 0.0, first_token: float = 0.0) -> Sequence:
    made = Sequence("r", [1, 2], 2, 9, SamplingParams(), StopConditions(frozenset(), 0), 1)
    made.timeline.arrived, made.timeline.first_step, made.timeline.first_token = arrived, first_step, first_token
    return made


@pytest.mark.property
@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_ranges_hold_what_was_added(gaps: list[int]) -> None:
    numbers = [5 + sum(gaps[:end]) for end in range(1, len(gaps) + 1)]
    ranges = Ranges()
    for number in numbers:
        ranges.add(number)
    read = [[int(end) for end in one.split("-")] for one in str(ranges).split(",") if one]
    assert {number for one in read for number in range(one[0], one[-1] + 1)} == set(numbers)
    assert len(ranges) == len(set(numbers))
    # No two of them could be one.
    assert all(after[0] > before[-1] + 1 for before, after in pairwise(read))


@pytest.mark.unit
def test_a_traced_request_notes_when_it_lost_its_blocks_and_how() -> None:
    now = 3.0
    one = sequence()
    one.timeline.history = history = History(lambda: now)
    one.park([1])
    now = 4.5
    one.lose_table()
    assert [tuple(preemption) for preemption in history.preemptions] == [(3.0, "swap"), (4.5, "recompute")]
    assert (one.timeline.swaps, one.timeline.recomputes) == (1, 1)


@pytest.mark.unit
def test_started_is_open_and_ended_whatever_happens() -> None:
    counts = RequestCounts()
    outcomes = {
        EndReason.STOP: "finished",
        EndReason.LENGTH: "finished",
        EndReason.ABORTED: "aborted",
        EndReason.REJECTED: "failed",
        EndReason.FAILED: "failed",
        None: "aborted",
    }
    assert outcomes.keys() == {*EndReason, None}
    with counts.request(sequence()):  # one that runs on
        for number, (reason, outcome) in enumerate(outcomes.items(), start=1):
            before = counts.read().ended[outcome]
            with contextlib.suppress(GeneratorExit), counts.request(one := sequence()):
                assert counts.read().open == 2
                one.end_reason = reason
                raise GeneratorExit
            counted = counts.read()
            assert counted.ended[outcome] == before + 1
            assert (counted.started, counted.open, sum(counted.ended.values())) == (1 + number, 1, number)
    assert counts.read().open == 0


@pytest.mark.unit
def test_a_refused_request_never_started() -> None:
    counts = RequestCounts()
    for reason in ("QUEUE_FULL", "NOT_READY", "QUEUE_FULL"):
        with contextlib.suppress(ServiceError), counts.refusals():
            raise ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, "no", reason=reason)
    counted = counts.read()
    assert (counted.started, counted.refused) == (0, {"QUEUE_FULL": 2, "NOT_READY": 1})


@pytest.mark.unit
def test_waits_count_as_far_as_a_request_came() -> None:
    counts = RequestCounts()
    for one in (sequence(), sequence(first_step=10.5), sequence(first_step=10.5, first_token=12.0)):
        with counts.request(one):
            pass
    read = {
        name: {sample.name.rpartition("_")[2]: sample.value for sample in times.family(name, "x").samples}
        for name, times in (("queue", counts.queue), ("token", counts.first_token))
    }
    assert (read["queue"]["count"], read["queue"]["sum"]) == (2, 1.0)
    assert (read["token"]["count"], read["token"]["sum"]) == (1, 2.0)


@pytest.mark.property
@settings(deadline=None)
@given(st.lists(st.floats(0, 400) | st.sampled_from([0.0001, 0.5, 300.0, 301.0]), max_size=40))
def test_a_histogram_is_as_prometheus_own(seconds: list[float]) -> None:
    bounds = (0.0001, 0.01, 0.5, 5.0, 300.0)
    ours, registry = Times(bounds), CollectorRegistry()
    theirs = Histogram("t_seconds", "x", buckets=bounds, registry=registry)
    for one in seconds:
        ours.observe(one)
        theirs.observe(one)
    (family,) = registry.collect()
    expected = {(one.name, one.labels.get("le")): one.value for one in family.samples if "created" not in one.name}
    shown = ours.family("t_seconds", "x").samples
    assert {(one.name, one.labels.get("le")): one.value for one in shown} == pytest.approx(expected)
