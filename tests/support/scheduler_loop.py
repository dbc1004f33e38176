"""The engine's loop without its thread and device: the real scheduler, the real manager core, a memory that knows."""

import itertools

from device_memory import DeviceMemory, lone_run, most_likely
from in_process_manager import InProcessManager

from model_worker.engine.batch import Batch, Limits
from model_worker.engine.beams import BeamSearch
from model_worker.engine.group import Group
from model_worker.engine.progress import Progress, book_output
from model_worker.engine.recovery import in_hand, snapshot
from model_worker.engine.scheduler import Scheduler
from model_worker.engine.sequence import Phase, Sequence
from model_worker.engine.statistics import Statistics
from model_worker.sampling.params import SamplingParams, StopConditions
from model_worker.sampling.results import StepOutput
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, steps_pb2

ARRIVALS = itertools.count(1)


def make_sequence(
    prompt: list[int], max_tokens: int, stops: frozenset[int] = frozenset(), priority: int = 0, samples: int = 1
) -> Sequence:
    """A request, as its first sample."""
    arrival = next(ARRIVALS)
    members = [_sample(prompt, max_tokens, stops, priority, arrival, index) for index in range(samples)]
    if samples > 1:
        group = Group(members, returned=samples)
        for member in members:
            member.group = group
    return members[0]


def _sample(
    prompt: list[int], max_tokens: int, stops: frozenset[int], priority: int, arrival: int, index: int
) -> Sequence:
    return Sequence(
        request_id=f"r{arrival}",
        tokens=list(prompt),
        prompt_length=len(prompt),
        limit=len(prompt) + max_tokens,
        sampling=SamplingParams(temperature=0, index=index),
        stop=StopConditions(stops),
        arrival=arrival,
        priority=priority,
    )


def make_beams(prompt: list[int], max_tokens: int, width: int, stops: frozenset[int], early: bool = False) -> Sequence:
    """A beam search, all of whose texts are returned."""
    first = make_sequence(prompt, max_tokens, stops)
    search = BeamSearch(width, 1.0, early, first.stop, max_tokens)
    first.sampling = SamplingParams(temperature=0, top_logprobs=search.candidates_per_beam)
    first.group = Group([first], width, search)
    return first


def lone_beams(
    prompt: list[int], max_tokens: int, width: int, stops: frozenset[int], early: bool = False
) -> list[list[int]]:
    """The same search without a scheduler: its texts, best first."""
    search = BeamSearch(width, 1.0, early, StopConditions(stops), max_tokens)
    beams: list[list[int]] = [[]]
    while beams:
        going_on = search.step([(one, most_likely([*prompt, *one], search.candidates_per_beam)) for one in beams])
        beams = [[*beams[one.parent], one.token] for one in going_on]
    return [list(text.tokens) for text in search.finished]


class Loop:
    """The engine's loop without its thread: plan k+1, run k, launch k+1.

    Attributes:
        quiet: whether a request that says nothing may stay unsent this turn; ``unsent`` counts those.
    """

    def __init__(
        self, limits: Limits, reserve: bool = True, adopt: bool = True, host_blocks: int = 0, late_swaps: bool = False
    ) -> None:
        self.limits = limits
        self.host_blocks = host_blocks
        self.late_swaps = late_swaps
        self.flush_every = 3
        self.quiet = False
        self.unsent = 0
        self.reserve = reserve
        self.adopt = adopt
        self.client = InProcessManager()
        self.memory = DeviceMemory(limits.num_blocks, limits.block_size, late_swaps)
        self.scheduler = Scheduler(limits, Statistics(), lambda: 1.0)
        self.launched: Batch | None = None
        self.requests: list[steps_pb2.StepRequest] = []
        self.answers: list[steps_pb2.StepResponse] = []
        self.batches: list[Batch] = []
        self.progress: list[Progress] = []
        self.attach()

    def attach(self) -> None:
        spec = attach_pb2.PoolSpec(
            pool="p",
            worker_id="w",
            num_blocks=self.limits.num_blocks,
            block_size=self.limits.block_size,
            block_bytes=1024,
            host_blocks=self.host_blocks,
            swaps_on_own_stream=self.late_swaps,
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
            self.memory = DeviceMemory(self.limits.num_blocks, self.limits.block_size, self.late_swaps)
        self.scheduler.attach(self.client.attach(parts), reserve=self.reserve, room_ahead=True)

    def lose_manager(self, answered: bool, steps_in_hand: int) -> None:
        """The manager dies, with or without a request unanswered, and another one starts."""
        if not answered:
            self.client.send(self.scheduler.plan())
        if self.launched is not None:
            self._finish(self.launched, self.memory.run(self.launched))
            self.launched = None
        self.memory.flush()
        self.scheduler.void_plan()
        for _ in range(steps_in_hand):
            batch = in_hand(self.scheduler)
            self._finish(batch, self.memory.run(batch))
        self.client.restart()
        self.attach()

    def turn(self) -> None:
        if self.quiet:  # that the manager hears of every end keeps it up to date; what is right does not hang on it
            self.scheduler.told_step = self.scheduler.news_step
        request = self.scheduler.plan_unless_quiet(never=self.launched is None or not self.quiet)
        if request is None:
            assert self.launched is not None
            self._finish(self.launched, self.memory.run(self.launched))
            self.batches.append(self.scheduler.go_on())
            self.launched = self.batches[-1] if self.batches[-1].rows else None
            self.unsent += 1
            return
        self.requests.append(request)
        self.client.send(request)
        if self.launched is not None:
            self._finish(self.launched, self.memory.run(self.launched))
        self.answers.append(self.client.receive())
        batch, _ = self.scheduler.launch(self.answers[-1])
        self._agree_on_host_tables()
        self.batches.append(batch)
        self.launched = None if batch.empty else batch
        if self.launched is None:
            self._finish(batch, StepOutput({}, {}))

    def _agree_on_host_tables(self) -> None:
        """Whoever is parked lies where the manager thinks: the next manager believes the worker."""
        known = self.client.manager._tenures["p"].pool.sequences
        parked = {seq: one.host_table for seq, one in self.scheduler.parked.items() if one.phase is not Phase.ENDED}
        assert parked == {seq: known[seq].host_table for seq in parked}

    def _finish(self, batch: Batch, output: StepOutput) -> None:
        if batch.step % self.flush_every == 0:  # swaps out on a stream of their own end some steps later
            self.memory.flush()
        self.progress += book_output(self.scheduler, batch, output, self.memory.completed(batch.step))

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
        assert stats.host_free_blocks == self.host_blocks


def assert_as_if_alone(request: Sequence) -> None:
    """Every sample of a finished request equals its lone run."""
    for member in request.group.members if request.group is not None else [request]:
        prompt = member.tokens[: member.prompt_length]
        assert member.tokens == lone_run(prompt, member.limit, member.stop.token_ids, member.sampling.index)


def limits(num_blocks: int = 20, block_size: int = 4, **changes: int) -> Limits:
    values = {"max_batch_tokens": 16, "max_sequences": 4, "max_chunk": 16} | changes
    return Limits(num_blocks=num_blocks, block_size=block_size, **values)
