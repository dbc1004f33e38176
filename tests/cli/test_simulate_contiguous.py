"""Contiguous allocators: regions lie inside the memory, never overlap, and merge when they are given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.simulate.contiguous import PLACEMENTS, Buddy, FirstFit, maximum, oracle, power_of_two
from cli.simulate.workload import Request


@pytest.mark.unit
def test_reservations() -> None:
    request = Request(0.0, prompt_tokens=100, output_tokens=33)
    assert maximum(request, 2_048) == 2_048
    assert power_of_two(request, 2_048) == 100 + 64
    assert power_of_two(request, 150) == 150
    assert power_of_two(request._replace(output_tokens=32), 2_048) == 100 + 32
    assert oracle(request, 2_048) == 100 + 33 - 1  # nobody stores the last token's keys and values


@pytest.mark.unit
def test_a_buddy_memory_of_15736_slots_holds_seven_sequences_of_2048() -> None:
    # 15,736 = 8,192 + 4,096 + 2,048 + 1,024 + ...: four, two and one.
    memory = Buddy(15_736)
    regions = [memory.take(2_048) for _ in range(8)]
    assert regions[0] == (12_288, 2_048)  # the smallest region that fits is not halved
    assert sorted(filter(None, regions)) == [(2_048 * place, 2_048) for place in range(7)]
    assert memory.take(1_025) is None
    assert memory.take(1_000) == (14_336, 1_024)


@pytest.mark.unit
def test_buddies_merge_and_others_do_not() -> None:
    memory = Buddy(1_024)
    first, second, third = memory.take(200), memory.take(256), memory.take(500)
    assert (first, second, third) == ((0, 256), (256, 256), (512, 512))
    memory.give_back(256, 256)
    memory.give_back(512, 512)
    assert memory.take(512) == (512, 512)  # [256, 512) has no free other half
    memory.give_back(512, 512)
    memory.give_back(0, 256)
    assert memory.take(1_024) == (0, 1_024)


@pytest.mark.unit
def test_first_fit_takes_the_lowest_hole() -> None:
    memory = FirstFit(100)
    assert [memory.take(size) for size in (30, 20, 40)] == [(0, 30), (30, 20), (50, 40)]
    memory.give_back(30, 20)
    assert memory.take(21) is None
    assert memory.take(15) == (30, 15)
    assert memory.take(10) == (90, 10)
    assert memory.take(5) == (45, 5)
    assert memory.take(1) is None


@pytest.mark.property
@pytest.mark.parametrize("placement", PLACEMENTS)
@given(
    slots=st.integers(1, 300),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 120), st.integers(0, 30)), max_size=60),
)
def test_regions_never_overlap_and_all_comes_back(
    placement: str, slots: int, moves: list[tuple[bool, int, int]]
) -> None:
    memory = PLACEMENTS[placement](slots)
    taken: list[tuple[int, int]] = []
    for takes, size, which in moves:
        if takes:
            region = memory.take(size)
            if region is not None:
                offset, length = region
                assert length >= size
                assert offset + length <= slots
                assert all(offset + length <= other or other + more <= offset for other, more in taken)
                taken.append(region)
        elif taken:
            memory.give_back(*taken.pop(which % len(taken)))
    for region in taken:
        memory.give_back(*region)
    whole = 1 << (slots.bit_length() - 1) if placement == "buddy" else slots
    assert memory.take(whole) == (0, whole)
