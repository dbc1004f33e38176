"""Traces through the manager's prefix cache, and the models of other policies beside it."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.simulate.eviction import Belady, Lru, count_hits, policies
from cli.simulate.prefix_cache import enough_blocks, replay, token_ids
from cli.simulate.traces import MOONCAKE_BLOCK, Prompt, read_trace
from cli.simulate.workload import Request
from kv_manager.core.manager import Manager


def prompt(*blocks: int, tokens: int = 0) -> Prompt:
    return Prompt(Request(0.0, tokens or len(blocks) * MOONCAKE_BLOCK, 1), blocks)


@pytest.fixture(scope="module")
def sample() -> list[Prompt]:
    return [each for each in read_trace("mooncake") if isinstance(each, Prompt)]


@pytest.mark.unit
def test_ids_are_equal_where_the_trace_says_so() -> None:
    first, second = token_ids(prompt(7, 8), False), token_ids(prompt(7, 9, tokens=600), False)
    assert first[: 4 * 512] == second[: 4 * 512]
    assert first[4 * 512 : 4 * 600] != second[4 * 512 :]
    assert (len(first), len(second), len(token_ids(prompt(7, 9, tokens=600), True))) == (4 * 1024, 4 * 600, 4 * 1024)


@pytest.mark.unit
def test_an_unbounded_pool_finds_every_prefix_seen_before(sample: list[Prompt]) -> None:
    full, padded = replay(Manager(), sample), replay(Manager(), sample, padded=True)
    for found, count in ((full, lambda each: each.full_blocks), (padded, lambda each: len(each.blocks))):
        seen: set[int] = set()
        references = hits = 0
        for each in sample:
            blocks = each.blocks[: count(each)]
            references += len(blocks)
            hits += len(list(itertools.takewhile(seen.__contains__, blocks)))
            seen.update(blocks)
        assert (found.references, found.hits, found.rejected) == (references, hits, 0)
        assert hits > 0


@pytest.mark.unit
@pytest.mark.parametrize("blocks", [300, 1_000, 3_000])
def test_the_model_of_its_policy_finds_what_the_manager_finds(sample: list[Prompt], blocks: int) -> None:
    managed = replay(Manager(), sample, blocks)
    assert blocks < enough_blocks(sample)
    hits = {name: count_hits(sample, blocks, policy) for name, policy in policies(sample, seed=1).items()}
    assert hits["LRU"] == managed.hits
    assert max(hits.values()) == hits["Belady"]
    assert hits["Belady"] <= replay(Manager(), sample).hits


@pytest.mark.unit
def test_a_prompt_that_outgrows_the_pool_is_counted_and_does_not_stop_the_others(sample: list[Prompt]) -> None:
    prompts = [prompt(1, 2, 3, 4), prompt(1, 2), prompt(1, 2)]
    # Four full blocks and the next token take five.
    found = replay(Manager(), prompts, 4)
    assert (found.references, found.hits, found.rejected) == (8, 2, 1)
    assert count_hits(prompts, 4, Lru()) == 2
    assert (replay(Manager(), prompts, 5).hits, count_hits(prompts, 5, Lru())) == (4, 4)


PATHS = st.lists(st.sampled_from([(1,), (1, 2), (1, 2, 3), (1, 4), (5,), (5, 6), (5, 7)]), min_size=1, max_size=9)


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(paths=PATHS, capacity=st.integers(4, 6))
def test_no_choice_of_what_to_keep_beats_belady(paths: list[tuple[int, ...]], capacity: int) -> None:
    prompts = [prompt(*path) for path in paths]
    best = {frozenset[int](): 0}  # the most hits that end with these blocks kept
    for path in paths:
        after: dict[frozenset[int], int] = {}
        for kept, hits in best.items():
            found = hits + len(list(itertools.takewhile(kept.__contains__, path)))
            there = kept | set(path)
            others = there - set(path)
            # While the prompt runs its blocks are there; of the others any may stay that fit beside it.
            for count in range(min(len(others), capacity - len(path)) + 1):
                for staying in itertools.combinations(sorted(others), count):
                    held = frozenset(staying) | set(path)
                    after[held] = max(after.get(held, 0), found)
        best = after
    assert count_hits(prompts, capacity, Belady(prompts)) == max(best.values())


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(paths=PATHS, capacity=st.integers(4, 6))
def test_the_model_of_its_policy_finds_what_the_manager_finds_in_small_pools(
    paths: list[tuple[int, ...]], capacity: int
) -> None:
    prompts = [prompt(*path, tokens=len(path) * MOONCAKE_BLOCK - index % 3) for index, path in enumerate(paths)]
    assert count_hits(prompts, capacity, Lru()) == replay(Manager(), prompts, capacity).hits
