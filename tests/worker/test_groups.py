"""Several samples of one prompt: one prefill, forks, copies, and what the caller hears of them."""

from dataclasses import replace

import pytest
from device_memory import lone_run
from scheduler_loop import Loop, assert_as_if_alone, limits, make_sequence

from model_worker.engine.sequence import EndReason, Phase, Sequence


def told(loop: Loop, request: Sequence) -> dict[int, list[int]]:
    """The tokens that a request's caller heard, by sample."""
    texts: dict[int, list[int]] = {}
    for one in loop.progress:
        if one.sequence.group is request.group:
            texts.setdefault(one.sequence.sampling.index, []).extend(one.tokens)
    return texts


@pytest.mark.unit
def test_samples_share_a_prompt_and_copy_its_last_block() -> None:
    # 6 tokens at block size 4: block 2 holds positions 4 and 5. Three samples of it cost two copies (design 3.3), and
    # the prompt is computed once, but for its last token, from which each sample draws.
    loop = Loop(limits())
    request = make_sequence([1, 2, 3, 4, 5, 6], max_tokens=2, samples=3)
    loop.scheduler.add(request)
    loop.drain()
    assert_as_if_alone(request)
    assert told(loop, request) == {index: lone_run([1, 2, 3, 4, 5, 6], 8, index=index)[6:] for index in range(3)}
    assert sum(len(batch.copies) for batch in loop.batches) == 2
    assert loop.scheduler.statistics.forks == 2
    # The lead computes 6, the others the sixth again; then one more each, the last token being written by nobody.
    assert loop.scheduler.statistics.computed_tokens == 6 + 2 + 3
    loop.assert_whole()


@pytest.mark.unit
def test_followers_are_forked_in_the_request_behind_the_last_chunk() -> None:
    loop = Loop(limits(max_chunk=4))
    request = make_sequence(list(range(10)), max_tokens=4, samples=2)
    loop.scheduler.add(request)
    loop.drain()
    # Chunks end at 4, 8 and 10; they share 9 tokens, which are computed with the third: asked for before its end.
    forked = [(one.step, [(fork.num_tokens, len(fork.children)) for fork in one.forks]) for one in loop.requests]
    assert [entry for entry in forked if entry[1]] == [(4, [(9, 1)])]
    assert_as_if_alone(request)


@pytest.mark.unit
def test_the_best_of_several_are_told_at_the_end() -> None:
    loop = Loop(limits(num_blocks=40, max_sequences=5))
    request = make_sequence([1, 2, 3, 4, 5], max_tokens=6, stops=frozenset(range(6)), samples=5)
    assert request.group is not None
    request.group.returned = 2
    for member in request.group.members:
        member.sampling = replace(member.sampling, top_logprobs=0)
    loop.scheduler.add(request)
    loop.drain()
    ranked = sorted(request.group.members, key=lambda one: -one.cumulative_logprob)
    assert told(loop, request) == {0: ranked[0].tokens[5:], 1: ranked[1].tokens[5:]}
    assert [one.ended is not None for one in loop.progress] == [True, True]
    assert all(one.logprobs == () for one in loop.progress)  # nobody asked for them
    # Lengths differ, and so do the ends: what is told is each sample's own.
    assert [one.sequence.end_reason for one in loop.progress] == [one.end_reason for one in ranked[:2]]
    loop.assert_whole()


@pytest.mark.unit
def test_an_abort_ends_every_sample() -> None:
    loop = Loop(limits(num_blocks=40))
    request = make_sequence([1, 2, 3, 4, 5], max_tokens=30, samples=3)
    loop.scheduler.add(request)
    for _ in range(6):
        loop.turn()
    assert [one.sequence.sampling.index for one in loop.scheduler.abort(request)] == [0, 1, 2]
    assert loop.scheduler.statistics.aborted_requests == 1
    before = len(loop.batches)
    loop.drain()
    # The step launched before the abort runs, granted as it was; then nothing of the request runs any more.
    assert sum(len(batch.rows) for batch in loop.batches[before:]) == 0
    assert request.end_reason is EndReason.ABORTED
    loop.assert_whole()


@pytest.mark.unit
def test_a_group_waits_until_all_its_samples_may_run() -> None:
    loop = Loop(limits(num_blocks=60, max_sequences=4))
    first, second = (make_sequence([1, 2, value], max_tokens=5, samples=3) for value in (8, 9))
    lone = make_sequence([5], max_tokens=5)
    for request in (first, second, lone):
        loop.scheduler.add(request)
    loop.drain()
    assert max(len(batch.rows) for batch in loop.batches) <= 4
    # Nobody overtakes: the lone request, for which there was a place all along, came behind the second group.
    groups_first_step = next(
        batch.step for batch in loop.batches if any(row.sequence.group is second.group for row in batch.rows)
    )
    lone_first_step = next(batch.step for batch in loop.batches if any(row.sequence is lone for row in batch.rows))
    assert groups_first_step <= lone_first_step
    for request in (first, second, lone):
        assert_as_if_alone(request)


@pytest.mark.unit
def test_a_group_that_outgrows_the_pool_is_rejected_whole() -> None:
    # 3 samples of 4 + 12 tokens hold 1 + 3 x 3 blocks of 4; there are 8, so the prompt fits and the group never.
    loop = Loop(limits(num_blocks=8), reserve=False)
    request = make_sequence([1, 2, 3, 4], max_tokens=12, samples=3)
    small = make_sequence([9], max_tokens=3)
    loop.scheduler.add(request)
    loop.scheduler.add(small)
    loop.drain()
    assert request.group is not None
    assert {one.phase for one in request.group.members} == {Phase.ENDED}
    assert {one.end_reason for one in request.group.members} == {EndReason.REJECTED}
    assert_as_if_alone(small)
    loop.assert_whole()
