"""The scheduler against the real manager core, with a device memory that sees every wrong read."""

import pytest
from device_memory import lone_run
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_loop import Loop, limits, make_sequence

from model_worker.engine.batch import ContractError, Limits
from model_worker.engine.sequence import EndReason, Phase, Sequence


@pytest.mark.unit
def test_a_lone_sequence_is_mentioned_only_at_block_edges() -> None:
    # 6 prompt tokens at block size 4 fill 2 blocks up to slot 8; 10 more tokens end at 16 known, 15 written.
    # The admit covers 6 positions; positions 6 and 7 need no message; blocks 3 and 4 start at positions 8 and 12.
    loop = Loop(limits(steps_ahead=0))
    sequence = make_sequence([1, 2, 3, 4, 5, 6], max_tokens=10)
    loop.scheduler.add(sequence)
    loop.drain()
    assert sequence.tokens == lone_run([1, 2, 3, 4, 5, 6], 16)
    assert [list(request.advances.num_tokens) for request in loop.requests if request.advances.seqs] == [[9], [13]]
    # Ids are committed once per full block: 2 more fill block 2, 4 fill block 3. The last token is never written, so
    # 15 written tokens make no fourth full block.
    commits = [(list(one.commits.starts), list(one.commits.counts)) for one in loop.requests if one.commits.seqs]
    assert commits == [([6], [2]), ([8], [4])]
    loop.assert_whole()


@pytest.mark.unit
def test_one_request_serves_the_next_steps_of_everybody_that_decodes() -> None:
    # Three prompts of 5, 6 and 7 tokens at block size 4 cross their edges in three different steps: at position 8 after
    # 3, 2 and 1 steps. With 8 steps ahead the first that must ask, for end 9, asks room up to 17 (5 blocks) for itself,
    # to 16 and 15 (4 blocks) for the others.
    loop = Loop(limits(num_blocks=60, steps_ahead=8, max_batch_tokens=32))
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]]
    sequences = [make_sequence(prompt, max_tokens=20) for prompt in prompts]
    for sequence in sequences:
        loop.scheduler.add(sequence)
    loop.drain()
    grown = [one.advances for one in loop.requests if one.advances.seqs]
    assert [(list(one.num_tokens), list(one.rooms)) for one in grown[:1]] == [([9, 7, 8], [17, 15, 16])]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        assert sequence.tokens == lone_run(prompt, len(prompt) + 20)
    # 19 positions each behind the prompt, of which the first 1 to 3 lie in its last block: a request in 9 steps.
    assert len(grown) == 2
    loop.assert_whole()


@pytest.mark.unit
def test_no_room_is_asked_that_others_could_miss() -> None:
    # A text of 46 tokens in a pool of 12 blocks of 4: 30 steps ahead are 8 blocks more than it holds, and 16 are never
    # free; near its end, at 10 blocks, the 2 it will take are all that is left.
    loop = Loop(limits(num_blocks=12, steps_ahead=30))
    sequence = make_sequence([1, 2, 3, 4, 5, 6], max_tokens=40)
    loop.scheduler.add(sequence)
    loop.drain()
    assert sequence.tokens == lone_run([1, 2, 3, 4, 5, 6], 46)
    assert not any(any(request.advances.rooms) for request in loop.requests)
    loop.assert_whole()


@pytest.mark.unit
def test_a_finished_sequence_is_left_out_and_released_one_step_later() -> None:
    prompt = [3, 1, 4]
    stop = lone_run(prompt, 6)[-1]
    loop = Loop(limits())
    sequence = make_sequence(prompt, max_tokens=50, stops=frozenset({stop}))
    loop.scheduler.add(sequence)
    loop.drain()
    assert sequence.end_reason is EndReason.STOP
    assert sequence.tokens == lone_run(prompt, 53, {stop})
    last_run = max(batch.step for batch in loop.batches if batch.rows)
    released = [request.step for request in loop.requests if request.releases]
    # Planned and sent before the stop was known: step last_run + 1; the release travels in the one after.
    assert released == [last_run + 2]
    loop.assert_whole()


@pytest.mark.unit
def test_the_second_turn_hits_what_the_first_one_generated() -> None:
    loop = Loop(limits())
    first = make_sequence([1, 2, 3, 4, 5, 6], max_tokens=8)
    loop.scheduler.add(first)
    loop.drain()
    # 14 known, 13 written: 3 full blocks of 4.
    second = make_sequence([*first.tokens, 7, 8], max_tokens=2)
    loop.scheduler.add(second)
    loop.drain()
    assert second.timeline.cached_tokens == 12
    loop.assert_whole()


@pytest.mark.unit
def test_a_whole_hit_computes_one_token_and_writes_nothing() -> None:
    loop = Loop(limits())
    prompt = [5, 6, 7, 8, 9, 10, 11, 12]  # 2 blocks of 4
    for _ in range(2):
        sequence = make_sequence(prompt, max_tokens=3)
        loop.scheduler.add(sequence)
        loop.drain()
        assert sequence.tokens == lone_run(prompt, 11)
    assert sequence.timeline.cached_tokens == 7
    row = next(row for batch in loop.batches for row in batch.rows if row.sequence is sequence)
    assert (row.start, row.end, sequence.hit_blocks) == (7, 8, 2)


@pytest.mark.unit
def test_decodes_go_on_while_a_long_prompt_is_computed() -> None:
    loop = Loop(limits(num_blocks=40, max_batch_tokens=9, max_chunk=8))
    decoding = make_sequence([1, 2, 3], max_tokens=20)
    loop.scheduler.add(decoding)
    loop.turn()
    loop.turn()
    long = make_sequence(list(range(40)), max_tokens=2)
    loop.scheduler.add(long)
    loop.drain()
    # 40 tokens in chunks of 8: 5 steps, in each of which the other sequence decodes.
    assert long.timeline.prefill_chunks == 5
    assert long.timeline.mixed_steps == 5
    assert decoding.tokens == lone_run([1, 2, 3], 23)
    loop.assert_whole()


@pytest.mark.unit
def test_no_decoder_misses_a_step_however_many_prompts_wait() -> None:
    """The gap between two tokens is one step, and no step computes more than the budget: counted, not timed."""
    loop = Loop(limits(num_blocks=120, max_batch_tokens=10, max_sequences=6))
    decoding = [make_sequence([1, 2, 3 + index], max_tokens=25) for index in range(2)]
    for sequence in decoding:
        loop.scheduler.add(sequence)
    for _ in range(3):
        loop.turn()
    long = [make_sequence([9 + index] * 60, max_tokens=2) for index in range(4)]
    for sequence in long:
        loop.scheduler.add(sequence)
    loop.drain()
    # 4 x 60 prompt tokens at 8 a step beside two decodes take 30 steps; the decodes are over before.
    for sequence in decoding:
        steps = [batch.step for batch in loop.batches if any(row.sequence is sequence for row in batch.rows)]
        assert steps == list(range(steps[0], steps[0] + 25))
        assert sequence.timeline.mixed_steps >= 20
    assert max(sum(row.end - row.start for row in batch.rows) for batch in loop.batches) == 10
    assert all(one.tokens == lone_run([9 + index] * 60, 62) for index, one in enumerate(long))


@pytest.mark.unit
def test_a_queue_waits_for_room_and_everybody_is_served() -> None:
    # 4 blocks of 4: each request of 8 + 8 tokens takes all of them, so they run one at a time.
    loop = Loop(limits(num_blocks=4))
    sequences = [make_sequence([i] * 8, max_tokens=8) for i in range(5)]
    for sequence in sequences:
        loop.scheduler.add(sequence)
    loop.drain()
    assert all(one.tokens == lone_run([i] * 8, 16) for i, one in enumerate(sequences))
    assert loop.scheduler.statistics.delayed_requests == 4
    loop.assert_whole()


@pytest.mark.unit
def test_a_request_that_never_fits_is_rejected_and_the_next_one_served() -> None:
    loop = Loop(limits(num_blocks=2))
    big, small = make_sequence(list(range(12)), max_tokens=1), make_sequence([1], max_tokens=2)
    loop.scheduler.add(big)
    loop.scheduler.add(small)
    loop.drain()
    assert big.end_reason is EndReason.REJECTED
    assert small.tokens == lone_run([1], 3)
    loop.assert_whole()


@pytest.mark.unit
def test_an_aborted_prompt_still_writes_what_others_share() -> None:
    # A's chunk is granted and its digests are visible to B in the same step; A is aborted before that step runs.
    loop = Loop(limits(num_blocks=20, max_batch_tokens=16))
    prompt = list(range(8))
    first, second = make_sequence(prompt, max_tokens=4), make_sequence([*prompt, 9], max_tokens=4)
    loop.scheduler.add(first)
    loop.scheduler.add(second)
    loop.turn()
    assert loop.scheduler.abort(first)
    loop.drain()
    assert second.timeline.cached_tokens == 8
    assert second.tokens == lone_run([*prompt, 9], 13)
    assert first.generated == 0
    loop.assert_whole()


@pytest.mark.unit
def test_a_preempted_sequence_comes_back_and_ends_as_if_alone() -> None:
    # 6 blocks of 4 hold 24 tokens; three sequences of 4 + 16 tokens need 15 blocks in the end.
    loop = Loop(limits(num_blocks=6), reserve=False)
    sequences = [make_sequence([i, i, i, i], max_tokens=16) for i in range(3)]
    for sequence in sequences:
        loop.scheduler.add(sequence)
    loop.drain()
    assert all(one.tokens == lone_run([i] * 4, 20) for i, one in enumerate(sequences))
    assert loop.scheduler.statistics.preemptions > 0
    assert sequences[0].timeline.recomputes == 0  # the best-ranked one never gives way
    loop.assert_whole()


@pytest.mark.unit
def test_a_new_manager_adopts_the_tables_and_nothing_is_computed_twice() -> None:
    loop = Loop(limits(num_blocks=20, steps_ahead=0))
    sequence = make_sequence([1, 2, 3, 4, 5, 6], max_tokens=20)
    loop.scheduler.add(sequence)
    for _ in range(5):
        loop.turn()
    loop.lose_manager(answered=False, steps_in_hand=50)
    # Steps in hand end with the last granted slot.
    assert sequence.computed % 4 == 0
    loop.drain()
    assert sequence.tokens == lone_run([1, 2, 3, 4, 5, 6], 26)
    assert sequence.timeline.recomputes == 0
    assert loop.scheduler.statistics.computed_tokens == 25
    loop.assert_whole()


@pytest.mark.unit
def test_an_answer_that_does_not_fit_the_books_is_not_run() -> None:
    loop = Loop(limits())
    loop.scheduler.add(make_sequence([1, 2, 3], max_tokens=4))
    request = loop.scheduler.plan()
    answer = loop.client.manager.step(request)
    answer.grants[0].first_index = 1
    with pytest.raises(ContractError, match="granted index 1"):
        loop.scheduler.launch(answer)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Limits, list[tuple[str, object]]]:
    size = draw(st.sampled_from([1, 2, 3, 4, 7]))
    budget = draw(st.integers(4, 24))
    chosen = Limits(
        num_blocks=draw(st.integers(6, 24)),
        block_size=size,
        max_batch_tokens=budget,
        max_sequences=draw(st.integers(1, 4)),
        max_chunk=draw(st.integers(1, 24)),
        watermark_blocks=draw(st.integers(0, 2)),
        steps_ahead=draw(st.integers(0, 6)),
    )
    stems = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 9, 9, 9], [7]]
    arrive = st.tuples(
        st.just("arrive"),
        st.tuples(
            st.sampled_from(stems),
            st.integers(1, 9),
            st.lists(st.integers(20, 22), max_size=4),
            st.integers(1, 10),
            st.booleans(),
            st.integers(-1, 1),
            st.integers(1, chosen.max_sequences),
        ),
    )
    events = st.one_of(
        arrive,
        st.tuples(st.just("turn"), st.just(None)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
        st.tuples(st.just("restart"), st.tuples(st.booleans(), st.integers(0, 3))),
    )
    return chosen, draw(st.lists(events, max_size=40))


@pytest.mark.property
@settings(max_examples=400, deadline=None)
@given(workloads(), st.booleans(), st.booleans(), st.sampled_from([0, 3, 12]), st.booleans())
def test_any_workload_reads_right_and_leaves_the_pool_whole(
    workload: tuple[Limits, list[tuple[str, object]]], reserve: bool, adopt: bool, host_blocks: int, late_swaps: bool
) -> None:
    chosen, events = workload
    loop = Loop(chosen, reserve, adopt, host_blocks, late_swaps)
    everybody: list[Sequence] = []
    for kind, value in events:
        if kind == "arrive":
            stem, cut, tail, max_tokens, stops, priority, samples = value  # type: ignore[misc]
            prompt = [*stem[:cut], *tail]
            # A group of n may hold n times what one holds, and a copy each.
            most = chosen.num_blocks // samples * chosen.block_size
            max_tokens = min(max_tokens, most - len(prompt))
            if max_tokens < 1:
                continue
            stop = frozenset(range(5)) if stops else frozenset()
            everybody.append(make_sequence(prompt, max_tokens, stop, priority, samples))
            loop.scheduler.add(everybody[-1])
        elif kind == "abort" and everybody:
            loop.scheduler.abort(everybody[value % len(everybody)])  # type: ignore[operator]
        elif kind == "restart":
            loop.lose_manager(*value)  # type: ignore[misc]
        else:
            loop.turn()
    loop.drain()
    for request in everybody:
        for sample in request.group.members if request.group is not None else [request]:
            expected = lone_run(
                sample.tokens[: sample.prompt_length], sample.limit, sample.stop.token_ids, sample.sampling.index
            )
            assert sample.phase is Phase.ENDED
            if sample.end_reason is EndReason.ABORTED:
                assert sample.tokens == expected[: len(sample.tokens)]
            else:
                assert sample.tokens == expected
    loop.assert_whole()
