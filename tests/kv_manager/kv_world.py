"""A worker in small, on a device that knows what it holds, driving a manager through random lives.

It follows section 3 of the design as a real worker must: everything granted is run, also for a sequence aborted
meanwhile; failed steps start everybody over; a manager that died finds the live tables in a snapshot.
"""

import random
from collections.abc import Callable

from kv_device import DeviceStep, Row, WrongRead
from kv_streams import NO_HOST_BLOCK, Regime, Stream, pack
from kv_worker import Worker

from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2


class World(Worker):
    """One worker with its device, and the manager behind ``attach`` and ``answer``."""

    def __init__(
        self,
        regime: Regime,
        rng: random.Random,
        attach: Callable[[attach_pb2.PoolSpec, list[attach_pb2.LiveSequence]], int],
        answer: Callable[[steps_pb2.StepRequest], steps_pb2.StepResponse],
        max_streams: int = 5,
    ) -> None:
        super().__init__(regime, rng, max_streams)
        self._attach, self._answer = attach, answer
        self.progress = 0
        self.operations = 0
        self.preemptions = 0
        self.late_hits = 0
        self.epoch = attach(regime.spec("world"), [])

    # --- a tick: build, send, follow, run

    @property
    def finished(self) -> bool:
        return not self.expected and all(stream.state == "done" for stream in self.streams.values())

    def tick(self) -> None:
        rng, regime = self.rng, self.regime
        self.clock += 1
        self._arrivals()
        if rng.random() < regime.restarts:
            self._reattach()
        request, plan = self._build()
        response = self._answer(request)
        self._count(request)
        if rng.random() < regime.replays:
            assert self._answer(request) == response, "a replay was answered differently"
        if rng.random() < regime.restarts:
            self._lose_answer(request)
            return
        for stream in self.streams.values():
            if stream.state != "done" and rng.random() < regime.aborts:
                stream.aborted = True
        while len(self.device.flight) >= regime.depth:
            self._execute()
        self._launch(request, response, plan)
        if self.failed:
            self._cancel_flight()  # what was granted behind a failed step is not run

    def finish(self) -> None:
        """Run what is in flight, then report it complete; afterwards nothing may be held."""
        while self.device.flight:
            self._execute()
        self.device.flush()
        self.device.completed = self.step
        for _ in range(3):
            request, plan = self._build()
            self._launch(request, self._answer(request), plan)
            while self.device.flight:
                self._execute()
            self.device.flush()
            self.device.completed = self.step

    def _count(self, request: steps_pb2.StepRequest) -> None:
        items = (request.forks, request.releases, request.resumes, request.admits)
        self.operations += 1 + sum(map(len, items)) + len(request.commits.seqs) + len(request.advances.seqs)

    # --- following an answer

    def _launch(self, request: steps_pb2.StepRequest, response: steps_pb2.StepResponse, plan: dict[int, int]) -> None:
        moves = [
            list(zip(part.sources, part.destinations, strict=True))
            for part in (response.swaps_out, response.swaps_in, response.copies)
        ]
        replaced = response.replaced
        for seq, index, block in zip(replaced.seqs, replaced.indexes, replaced.blocks, strict=True):
            if self.streams[seq].table:
                self.streams[seq].table[index] = block
        self._lose_tables(response)
        self.device.granted([destination for _, destination in moves[2]])
        admitted = {admit.seq: len(admit.token_ids) // 4 for admit in request.admits}
        resumed = {resume.seq for resume in request.resumes}
        told: set[int] = set()
        for grant in response.grants:
            stream = self.streams[grant.seq]
            whole = grant.seq in admitted or stream.state == "parked"
            if whole:
                stream.table, stream.host = [], []
            assert grant.first_index == len(stream.table), "a grant does not continue its table"
            shared = grant.hit_blocks - grant.first_index if grant.HasField("hit_blocks") else 0
            self.device.granted(grant.blocks[shared:])
            stream.table += grant.blocks
            if grant.seq in admitted:
                stream.state, stream.sent, stream.target = "running", admitted[grant.seq], admitted[grant.seq]
                stream.launched, stream.floor, stream.fork_point = grant.cached_tokens, grant.hit_blocks, 0
                plan[grant.seq] = grant.granted_tokens
                told.add(grant.seq)
            elif stream.state == "parked":
                stream.state = "running"
                plan.pop(grant.seq, None)
            elif grant.HasField("cached_tokens"):
                self.late_hits += 1
                stream.launched, stream.floor = grant.cached_tokens, max(stream.floor, grant.hit_blocks)
                plan[grant.seq] = grant.granted_tokens
                told.add(grant.seq)
        assert resumed <= set(self.streams)
        waiting = {item.seq for item in response.waiting}
        rows = [
            self._row(self.streams[seq], end, seq in told)
            for seq, end in plan.items()
            if self.streams[seq].state == "running" and seq not in waiting
        ]
        # An aborted sequence runs too: what was granted is a promise (design 3.2).
        self.device.flight.append(DeviceStep(response.header.step, moves[0], moves[1], moves[2], rows))
        self.step = response.header.step

    def _lose_tables(self, response: steps_pb2.StepResponse) -> None:
        parked = dict(zip(response.swaps_out.sources, response.swaps_out.destinations, strict=True))
        for item in response.preempted:
            stream = self.streams[item.seq]
            self.preemptions += 1
            stream.preemptions += 1
            assert stream.preemptions <= 4, f"sequence {stream.id} is preempted again and again without a token"
            swapped = item.mode == steps_pb2.PREEMPTION_MODE_SWAP
            stream.host = [parked[block] if block else NO_HOST_BLOCK for block in stream.table] if swapped else []
            stream.table = []
            if stream.state == "done":
                continue
            stream.again = True
            if item.mode == steps_pb2.PREEMPTION_MODE_SWAP:
                stream.state = "parked"
            else:
                stream.state, stream.solo, stream.host = "victim", False, []
                stream.launched = stream.ended = stream.target = 0
        for item in response.rejected:
            stream = self.streams[item.seq]
            for each in self.streams.values():
                if each.group == stream.group and each.state in ("folded", "victim"):
                    each.state = "done"
            stream.state = "done"

    def _row(self, stream: Stream, end: int, told: bool) -> Row:
        size = self.regime.block_size
        drafts = 0 if told else stream.drafts
        tokens, correct = stream.tokens(end), end
        for position in range(end - drafts, end):
            if self.rng.random() > 0.6:
                tokens[position] = 99
                correct = min(correct, position)
        generations = [self.device.generation[block] for block in stream.table]
        row = Row(
            owner=stream.id,
            start=stream.launched,
            end=end,
            floor=stream.floor * size,
            table=list(stream.table),
            tokens=tuple(tokens),
            correct=correct,
            generations=generations,
            truth=tuple(stream.tokens(end)),
        )
        stream.launched = end
        stream.fresh_fork = False
        stream.busy += 1
        return row

    # --- the device

    def _execute(self) -> None:
        if self.rng.random() < self.regime.failures:
            self.failed = self.failed or self.device.flight[0].number
            self._cancel_flight()
            return
        for row in self.device.flight[0].rows:
            stream = self.streams[row.owner]
            row.dropped = stream.known >= stream.limit or stream.state == "done"
        step = self.device.execute()
        for row in step.rows:
            stream = self.streams[row.owner]
            stream.busy -= 1
            stream.ended = max(stream.ended, row.correct)
            if stream.launched == row.end and stream.state in ("running", "parked"):
                stream.launched = row.correct  # rejected drafts are overwritten by the next step
            if row.correct >= stream.prompt and row.correct >= stream.known:
                stream.known = row.correct + 1
                stream.preemptions = 0
                self.progress += 1

    def _cancel_flight(self) -> None:
        for step in self.device.flight:
            for row in step.rows:
                self.streams[row.owner].busy -= 1
        self.device.fail()

    # --- the manager dies

    def _reattach(self) -> None:
        """Drain, then hand the live tables to a manager started empty (design 3.6)."""
        while self.device.flight:
            self._execute()
        if self.failed:
            for stream in self.streams.values():
                if stream.state in ("running", "parked"):
                    self._start_over(stream)
            self.failed = 0
        self.device.flush()
        snapshot = []
        for stream in self.streams.values():
            if stream.state not in ("running", "parked"):
                continue
            if not stream.table and not stream.host:
                self._start_over(stream)
                continue
            live = attach_pb2.LiveSequence(
                seq=stream.id,
                token_ids=pack(stream.tokens(stream.known)),
                computed_tokens=min(stream.launched, stream.known),
                granted_tokens=stream.launched,
                hit_blocks=stream.floor,
                table=stream.table,
                host_table=stream.host,
                group=stream.group,
                priority=stream.priority,
                arrival=stream.arrival,
                root=common_pb2.PrefixRoot(tenant=stream.tenant),
                fork_tokens=stream.fork_point,
            )
            stream.sent = stream.known
            snapshot.append(live)
        self.epoch = self._attach(self.regime.spec("world", self.step), snapshot)

    def _lose_answer(self, request: steps_pb2.StepRequest) -> None:
        """The answer is lost with the manager, so the request never was: what it changed here is taken back."""
        forked = {child: fork.parent for fork in request.forks for child in fork.children}
        for child, parent in forked.items():
            stream = self.streams[child]
            if stream.target:
                stream.state, stream.table = "folded", []  # it was forked back into its group
            else:
                del self.streams[child]
                if parent in self.streams and not self.regime.beams:
                    self.streams[parent].forks += 1
        self._reattach()


def check_free(world: World, available: int) -> None:
    if available != world.regime.num_blocks:
        raise WrongRead(f"leak: {available} of {world.regime.num_blocks} blocks are free at the end")
