"""Some samples of a request end by their caller's wish and give their blocks back, while the others go on."""

import random

import pytest
from device_memory import lone_run
from scheduler_loop import Loop, limits, make_sequence

from model_worker.engine.group import end_of
from model_worker.engine.outcomes import abort_samples
from model_worker.engine.sequence import EndReason, Phase, Sequence

PROMPT = [1, 2, 3, 4, 5]


def members(request: Sequence) -> list[Sequence]:
    assert request.group is not None
    return request.group.members


def begin(loop: Loop, samples: int, max_tokens: int, turns: int) -> Sequence:
    request = make_sequence(PROMPT, max_tokens, samples=samples)
    loop.scheduler.add(request)
    for _ in range(turns):
        loop.turn()
    return request


def assert_samples(request: Sequence, aborted: set[int]) -> None:
    """The aborted ones have the beginning of their lone runs, the others all of it."""
    for one in members(request):
        expected = lone_run(PROMPT, one.limit, index=one.sampling.index)
        assert one.phase is Phase.ENDED
        if one.sampling.index in aborted:
            assert one.end_reason is EndReason.ABORTED
            assert one.tokens == expected[: len(one.tokens)] != expected
        else:
            assert one.tokens == expected


@pytest.mark.unit
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_sample_gives_its_blocks_back_while_the_others_go_on(index: int) -> None:
    # Blocks of 4. After 5 + 10 tokens, 14 of them written, each sample has block 0 with the others, and three more.
    loop = Loop(limits(num_blocks=40))
    request = begin(loop, samples=3, max_tokens=40, turns=12)
    held = loop.scheduler.pool_stats.referenced_blocks
    tables = [list(one.table) for one in members(request)]
    own = len(set(tables[index]) - {block for other, table in enumerate(tables) if other != index for block in table})
    assert (held, own) == (1 + 3 * 3, 3)
    (ended,) = abort_samples(loop.scheduler, request, [index])
    assert (ended.sequence.sampling.index, ended.sequence.end_reason) == (index, EndReason.ABORTED)
    assert abort_samples(loop.scheduler, request, [index]) == []
    assert end_of(request) is None
    loop.turn()  # sends the release
    grown = sum(len(one.table) - len(table) for one, table in zip(members(request), tables, strict=True))
    assert loop.scheduler.pool_stats.referenced_blocks == held - own + grown
    loop.drain()
    assert_samples(request, {index})
    assert end_of(request) is EndReason.LENGTH
    assert loop.scheduler.statistics.finished_requests == 1
    assert loop.scheduler.statistics.aborted_requests == 0
    loop.assert_whole()


@pytest.mark.unit
def test_the_others_get_the_prompt_computed_when_the_first_leaves_before_they_were_forked() -> None:
    loop = Loop(limits(num_blocks=40, max_chunk=2))
    request = begin(loop, samples=3, max_tokens=6, turns=2)
    assert [one.phase for one in members(request)] == [Phase.RUNNING, Phase.FOLLOWING, Phase.FOLLOWING]
    abort_samples(loop.scheduler, request, [0])
    loop.drain()
    assert_samples(request, {0})
    loop.assert_whole()


@pytest.mark.unit
def test_a_request_all_of_whose_samples_leave_is_an_aborted_one() -> None:
    loop = Loop(limits(num_blocks=40))
    request = begin(loop, samples=3, max_tokens=40, turns=12)
    assert len(abort_samples(loop.scheduler, request, [1])) == 1
    # What is told of the rest does not tell of the first one again.
    assert [one.sequence.sampling.index for one in loop.scheduler.abort(request)] == [0, 2]
    other = begin(loop, samples=2, max_tokens=40, turns=6)
    assert [one.sequence.sampling.index for one in abort_samples(loop.scheduler, other, [0, 1])] == [0, 1]
    assert (end_of(request), end_of(other)) == (EndReason.ABORTED, EndReason.ABORTED)
    assert loop.scheduler.statistics.aborted_requests == 2
    assert loop.scheduler.statistics.aborted_in_decode == 2
    loop.drain()
    loop.assert_whole()


@pytest.mark.unit
def test_a_lone_sample_is_its_request() -> None:
    loop = Loop(limits())
    request = begin(loop, samples=1, max_tokens=40, turns=4)
    assert abort_samples(loop.scheduler, request, [1]) == []
    assert len(abort_samples(loop.scheduler, request, [0])) == 1
    loop.drain()
    loop.assert_whole()


@pytest.mark.unit
@pytest.mark.parametrize("host_blocks", [0, 30], ids=["recompute", "swap"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_sample_leaves_while_its_group_has_given_way(host_blocks: int, index: int) -> None:
    # 11 blocks of 4: the samples have 1 + 3 x 3 in the end, and the text that came first 4 by then.
    loop = Loop(limits(num_blocks=11), reserve=False, host_blocks=host_blocks)
    first = make_sequence([9, 9, 9, 9], max_tokens=24)
    loop.scheduler.add(first)
    request = begin(loop, samples=3, max_tokens=12, turns=0)
    while not loop.scheduler.statistics.preemptions:
        assert loop.scheduler.busy
        loop.turn()
    assert all(not one.table and one.generated > 0 for one in members(request))
    abort_samples(loop.scheduler, request, [index])
    loop.drain()
    assert_samples(request, {index})
    assert first.tokens == lone_run([9, 9, 9, 9], 28)
    loop.assert_whole()


LIVES = 30


@pytest.mark.property
@pytest.mark.parametrize("host_blocks", [0, 60])
def test_samples_may_leave_at_any_time(host_blocks: int) -> None:
    """Random lives on a pool too small: whoever stays has its lone run, and at the end the pool is whole."""
    left = preempted = stayed = 0
    for number in range(LIVES):
        dice = random.Random(f"{host_blocks} {number}")
        size = dice.choice([1, 2, 3, 4])
        chosen = limits(
            num_blocks=dice.randrange(30, 44) // size, block_size=size, max_sequences=8, max_chunk=dice.randrange(2, 9)
        )
        late_swaps, reserve = dice.random() < 0.5, dice.random() < 0.2
        loop = Loop(chosen, reserve, dice.random() < 0.7, host_blocks, late_swaps)
        requests: list[Sequence] = []
        for _ in range(8):
            prompt = [1, 2, 3, *(dice.randrange(20, 30) for _ in range(dice.randrange(1, 4)))]
            requests.append(make_sequence(prompt, dice.randrange(2, 7), samples=dice.choice([1, 2, 3, 4])))
            loop.scheduler.add(requests[-1])
            for _ in range(dice.randrange(6)):
                request = dice.choice(requests)
                if dice.random() < 0.4:
                    left += len(abort_samples(loop.scheduler, request, {dice.randrange(4), dice.randrange(4)}))
                elif dice.random() < 0.05:
                    loop.scheduler.abort(request)
                if dice.random() < 0.05:
                    loop.lose_manager(answered=dice.random() < 0.5, steps_in_hand=dice.randrange(3))
                loop.turn()
        loop.drain()
        for request in requests:
            for one in request.group.members if request.group is not None else [request]:
                expected = lone_run(one.tokens[: one.prompt_length], one.limit, index=one.sampling.index)
                assert one.phase is Phase.ENDED
                if one.end_reason is EndReason.LENGTH:
                    stayed += 1
                    assert one.tokens == expected
                else:
                    assert one.tokens == expected[: len(one.tokens)]
        loop.assert_whole()
        preempted += loop.scheduler.statistics.preemptions
    print(left, preempted, stayed)
    assert min(left, preempted, stayed) > LIVES
