"""Runs of the scheduler over the real manager and over contiguous regions."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.simulate.beams import Survivors
from cli.simulate.contiguous import PLACEMENTS, RESERVATIONS
from cli.simulate.costs import A100_40, OPT_13B, Costs
from cli.simulate.experiments import Setting, Watching, run_contiguous, run_paged
from cli.simulate.jobs import Memory, Usage
from cli.simulate.measuring import Window
from cli.simulate.scheduling import Limits, Step
from cli.simulate.workload import Request
from kv_manager.core.manager import Manager

COSTS = Costs(OPT_13B, A100_40)


def setting(slots: int, block_size: int = 4, **limits: int) -> Setting:
    return Setting(slots, max_tokens=64, block_size=block_size, costs=COSTS, limits=Limits(**limits), window=Window())


class Seen:
    """Every step of a run and how the memory was used then."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.usage: list[Usage] = []

    @property
    def watching(self) -> Watching:
        def watch(memory: Memory) -> Callable[[Step], None]:
            def observe(step: Step) -> None:
                self.steps.append(step)
                self.usage.append(memory.usage(step.table_tokens))

            return observe

        return watch


@pytest.mark.unit
def test_one_request_step_by_step() -> None:
    # 6 tokens in, 4 out: 6 + 4 - 1 = 9 are stored. At block size 4, 6 to 8 tokens take two blocks and the 9th a third.
    seen = Seen()
    measured = run_paged(Manager(), [Request(0.0, 6, 4)], setting(42), watching=seen.watching)
    assert [step.table_tokens for step in seen.steps] == [6, 7, 8, 9, 0]
    assert [step.new_tokens for step in seen.steps] == [6, 1, 1, 1, 0]
    # Slots: 42 are ten blocks and two. In the last block 12 - 9 = 3 are never filled.
    assert seen.usage == [
        Usage(tokens=6, reserved=2, internal=0, external=34),
        Usage(tokens=7, reserved=1, internal=0, external=34),
        Usage(tokens=8, reserved=0, internal=0, external=34),
        Usage(tokens=9, reserved=0, internal=3, external=30),
        Usage(tokens=0, reserved=0, internal=0, external=42),
    ]
    assert seen.steps[-1].finished == 1
    assert (measured.rejected, measured.preempted) == (0, 0)


@pytest.mark.unit
def test_one_request_in_a_contiguous_region() -> None:
    # The power of two reserves 6 + 4 = 10 and a buddy allocator rounds up to 16; 9 of them are filled in the end.
    seen = Seen()
    run_contiguous("power of two", "buddy", [Request(0.0, 6, 4)], setting(42), seen.watching)
    assert [step.table_tokens for step in seen.steps] == [6, 7, 8, 9, 0]
    assert seen.usage[0] == Usage(tokens=6, reserved=3, internal=1, external=32)
    assert seen.usage[3] == Usage(tokens=9, reserved=0, internal=1, external=32)


@pytest.mark.unit
def test_a_prompt_is_computed_within_the_budget_beside_those_who_decode() -> None:
    # Budget 8: the first prompt of 6 leaves 2 for the second; then one token decodes and 7 are left.
    seen = Seen()
    requests = [Request(0.0, 6, 3), Request(0.0, 14, 1)]
    run_paged(Manager(), requests, setting(40, budget=8), watching=seen.watching)
    assert [step.new_tokens for step in seen.steps] == [8, 8, 6, 0]


@pytest.mark.unit
def test_who_does_not_fit_is_preempted_comes_back_and_is_served() -> None:
    # Three blocks of 4 hold one sequence of 4 + 8 - 1 = 11 tokens but not two: the later one gives way, computes again
    # the 5 to 8 tokens that it had, and goes on.
    seen = Seen()
    measured = run_paged(Manager(), [Request(0.0, 4, 8), Request(0.0, 4, 8)], setting(12), watching=seen.watching)
    assert measured.preempted >= 1
    assert seen.steps[-1].finished == 2


@pytest.mark.unit
def test_who_can_never_fit_is_rejected_and_the_next_is_served() -> None:
    requests = [Request(0.0, 40, 2), Request(0.0, 4, 2)]
    for run in (
        run_paged(Manager(), requests, setting(16)),
        run_contiguous("oracle", "first fit", requests, setting(16)),
    ):
        assert run.rejected == 1
        assert run.averages.steps > 0


@pytest.mark.unit
def test_samples_share_the_full_blocks_of_their_prompt() -> None:
    # A prompt of 10 at block size 4: two full blocks and a part. With 3 samples at 11 tokens each names 3 blocks, and
    # of the 9 the two full ones are shared: 2 + 3 = 5 are there, 4 of 9 saved.
    seen: list[tuple[int, int]] = []
    manager = Manager()
    run_paged(
        manager,
        [Request(0.0, 10, 2)],
        setting(80, width=3),
        watching=lambda memory: lambda step: seen.append(memory.saved()),
    )
    assert seen[:2] == [(0, 3), (4, 9)]


@pytest.mark.unit
def test_survivors_fill_every_place() -> None:
    beams = [5, 6, 7, 8]
    for seed in range(50):
        survivors, parents = Survivors(0.5, seed).choose(beams)
        assert len(survivors) + len(parents) == 4
        assert set(parents) <= set(survivors) <= set(beams)
    assert Survivors(0.0, 1).choose(beams) == (beams, [])
    assert Survivors(1.0, 1).choose([9]) == ([9], [])


REQUESTS = st.lists(
    st.builds(Request, st.floats(0, 0.5), st.integers(1, 20), st.integers(1, 16)), min_size=1, max_size=12
).map(sorted)


@pytest.mark.property
@settings(max_examples=150, deadline=None)
@given(
    requests=REQUESTS,
    slots=st.integers(9, 120),  # the command refuses a memory that holds no block
    block_size=st.integers(1, 9),
    budget=st.integers(1, 40),
    width=st.integers(1, 4),
    turnover=st.sampled_from([0.0, 0.3]),
)
def test_every_run_ends_counts_like_the_manager_and_accounts_for_every_slot(
    requests: list[Request], slots: int, block_size: int, budget: int, width: int, turnover: float
) -> None:
    seen = Seen()
    survivors = Survivors(turnover, 1) if turnover else None
    # run_paged itself compares all counters with the manager's and asks it to check its invariants.
    measured = run_paged(
        Manager(), requests, setting(slots, block_size, budget=budget, width=width), survivors, seen.watching
    )
    last = seen.steps[-1]
    assert last.finished + measured.rejected == len(requests)
    assert last.table_tokens == 0
    for usage in seen.usage:
        assert sum(usage) == slots
        assert min(usage) >= 0
    # Nobody can be served whose last block the pool lacks, and alone everyone else is.
    blocks = slots // block_size
    fits = [request for request in requests if -(-(request.prompt_tokens + 1) // block_size) <= blocks]
    assert last.finished <= len(fits)


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(
    requests=REQUESTS,
    slots=st.integers(64, 200),
    reservation=st.sampled_from(sorted(RESERVATIONS)),
    placement=st.sampled_from(sorted(PLACEMENTS)),
)
def test_contiguous_regions_serve_everyone_and_account_for_every_slot(
    requests: list[Request], slots: int, reservation: str, placement: str
) -> None:
    seen = Seen()
    measured = run_contiguous(reservation, placement, requests, setting(slots), seen.watching)
    assert measured.rejected == 0
    assert seen.steps[-1].finished == len(requests)
    # Every token is computed once: nobody is preempted.
    assert sum(step.new_tokens for step in seen.steps) == sum(request.kv_tokens for request in requests)
    for usage in seen.usage:
        assert sum(usage) == slots
        assert min(usage) >= 0
