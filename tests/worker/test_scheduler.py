"""The scheduler against the real manager core, with a device memory that sees every wrong read."""

import itertools

import pytest
from device_memory import DeviceMemory, lone_run
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process_manager import InProcessManager

from model_worker.engine.batch import Batch, ContractError, Limits
from model_worker.engine.recovery import in_hand, snapshot
from model_worker.engine.scheduler import Scheduler
from model_worker.engine.sequence import EndReason, Phase, Sequence
from model_worker.engine.statistics import Statistics
from model_worker.sampling.params import SamplingParams, StopConditions
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, steps_pb2

ARRIVALS = itertools.count(1)


def make_sequence(
    prompt: list[int], max_tokens: int, stops: frozenset[int] = frozenset(), priority: int = 0
) -> Sequence:
    arrival = next(ARRIVALS)
    return Sequence(
        request_id=f"r{arrival}",
        tokens=list(prompt),
        prompt_length=len(prompt),
        limit=len(prompt) + max_tokens,
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(stops),
        arrival=arrival,
        priority=priority,
    )


class Loop:
    """The engine's loop without its thread: plan k+1, run k, launch k+1."""

    def __init__(self, limits: Limits, reserve: bool = True, adopt: bool = True) -> None:
        self.limits = limits
        self.reserve = reserve
        self.adopt = adopt
        self.client = InProcessManager()
        self.memory = DeviceMemory(limits.num_blocks, limits.block_size)
        self.scheduler = Scheduler(limits, Statistics(), lambda: 1.0)
        self.launched: Batch | None = None
        self.requests: list[steps_pb2.StepRequest] = []
        self.batches: list[Batch] = []
        self.attach()

    def attach(self) -> None:
        spec = attach_pb2.PoolSpec(
            pool="p",
            worker_id="w",
            num_blocks=self.limits.num_blocks,
            block_size=self.limits.block_size,
            model_fingerprint="m",
            watermark_blocks=self.limits.watermark_blocks,
            reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
        )
        spec.step = self.scheduler.step
        parts = [attach_pb2.AttachRequest(pool=spec)]
        if self.adopt:
            live = attach_pb2.LiveSequences(sequences=snapshot(self.scheduler))
            parts.append(attach_pb2.AttachRequest(sequences=live))
        else:  # nothing of an earlier epoch may be read again
            self.memory = DeviceMemory(self.limits.num_blocks, self.limits.block_size)
        self.scheduler.attach(self.client.attach(parts), reserve=self.reserve)

    def lose_manager(self, answered: bool, steps_in_hand: int) -> None:
        """The manager dies, with or without a request unanswered, and another one starts."""
        if not answered:
            self.client.send(self.scheduler.plan())
        if self.launched is not None:
            self.scheduler.finish(self.launched, self.memory.run(self.launched))
            self.launched = None
        self.scheduler.void_plan()
        for _ in range(steps_in_hand):
            batch = in_hand(self.scheduler)
            self.scheduler.finish(batch, self.memory.run(batch))
        self.client.restart()
        self.attach()

    def turn(self) -> None:
        request = self.scheduler.plan()
        self.requests.append(request)
        self.client.send(request)
        if self.launched is not None:
            self.scheduler.finish(self.launched, self.memory.run(self.launched))
        batch, _ = self.scheduler.launch(self.client.receive())
        self.batches.append(batch)
        self.launched = batch if batch.rows or batch.copies else None
        if self.launched is None:
            self.scheduler.finish(batch, {})

    def drain(self, turns: int = 2_000) -> None:
        for _ in range(turns):
            if self.launched is None and not self.scheduler.busy:
                return
            self.turn()
        raise AssertionError("the scheduler did not come to rest")

    def assert_whole(self) -> None:
        stats = self.scheduler.pool_stats
        assert stats.free_blocks + stats.cached_blocks == self.limits.num_blocks
        assert self.client.manager._tenures["p"].pool.refused == set()
        verdict = self.client.manager.check_integrity(inspect_pb2.CheckIntegrityRequest(pool="p"))
        assert list(verdict.violations) == []


def limits(num_blocks: int = 20, block_size: int = 4, **changes: int) -> Limits:
    values = {"max_batch_tokens": 16, "max_sequences": 4, "max_chunk": 16} | changes
    return Limits(num_blocks=num_blocks, block_size=block_size, **values)


@pytest.mark.unit
def test_a_lone_sequence_is_mentioned_only_at_block_edges() -> None:
    # 6 prompt tokens at block size 4 fill 2 blocks up to slot 8; 10 more tokens end at 16 known, 15 written.
    # The admit covers 6 positions; positions 6 and 7 need no message; blocks 3 and 4 start at positions 8 and 12.
    loop = Loop(limits())
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
    loop = Loop(limits(num_blocks=20))
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
@settings(max_examples=300, deadline=None)
@given(workloads(), st.booleans(), st.booleans())
def test_any_workload_reads_right_and_leaves_the_pool_whole(
    workload: tuple[Limits, list[tuple[str, object]]], reserve: bool, adopt: bool
) -> None:
    chosen, events = workload
    loop = Loop(chosen, reserve, adopt)
    everybody: list[tuple[Sequence, list[int]]] = []
    for kind, value in events:
        if kind == "arrive":
            stem, cut, tail, max_tokens, stops, priority = value  # type: ignore[misc]
            prompt = [*stem[:cut], *tail]
            max_tokens = min(max_tokens, chosen.num_blocks * chosen.block_size - len(prompt))
            if max_tokens < 1:
                continue
            stop = frozenset(range(5)) if stops else frozenset()
            sequence = make_sequence(prompt, max_tokens, stop, priority)
            everybody.append((sequence, lone_run(prompt, len(prompt) + max_tokens, stop)))
            loop.scheduler.add(sequence)
        elif kind == "abort" and everybody:
            loop.scheduler.abort(everybody[value % len(everybody)][0])  # type: ignore[operator]
        elif kind == "restart":
            loop.lose_manager(*value)  # type: ignore[misc]
        else:
            loop.turn()
    loop.drain()
    for sequence, expected in everybody:
        assert sequence.phase is Phase.ENDED
        if sequence.end_reason is EndReason.ABORTED:
            assert sequence.tokens == expected[: len(sequence.tokens)]
        else:
            assert sequence.tokens == expected
    loop.assert_whole()
