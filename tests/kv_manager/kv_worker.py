"""What a small worker asks for: arrivals, and the request of the next step. ``kv_world`` follows the answers."""

import random

from kv_device import Device, DeviceStep
from kv_streams import Regime, Stream, cdiv, pack

from octavo.kv.v1 import common_pb2, steps_pb2


class Worker:
    """The sequences of a worker and how it plans a step.

    It asks one step ahead, commits once per full block, advances at block edges and at first writes after a fork (rule
    8), lets groups sit out and come back together (design 3.9).
    """

    def __init__(self, regime: Regime, rng: random.Random, max_streams: int) -> None:
        self.regime, self.rng = regime, rng
        self.device = Device(
            num_blocks=regime.num_blocks,
            block_size=regime.block_size,
            window=regime.window,
            rng=rng,
            late_swaps=regime.late_swaps,
            drafts=regime.drafts > 0,
            late_forks=regime.forks == "late",
        )
        self.epoch = self.step = 0
        self.failed = 0
        self.clock = 0
        self.next_id = 1
        self.streams: dict[int, Stream] = {}
        self.expected = [self._random_stream(arrival) for arrival in range(rng.randrange(1, max_streams + 1))]

    # --- arrivals

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _arrivals(self) -> None:
        """Ids grow in the order in which the manager first hears of them."""
        for stream in [stream for stream in self.expected if stream.starts <= self.clock]:
            self.expected.remove(stream)
            stream.id = stream.group = self._new_id()
            self.streams[stream.id] = stream

    def _random_stream(self, arrival: int) -> Stream:
        rng, regime = self.rng, self.regime
        shared = rng.choice([[1, 2, 3, 4, 5, 6], [1, 2, 9, 9, 8, 7]])
        prompt = shared[: rng.choice([1, 2, 3, 4, 4, 6])]
        prompt = prompt + [7, 8, 9, 5][: rng.choice([0, 2, 2, 4])] if rng.random() < 0.5 else prompt
        prompt += [rng.randrange(2) + 20 for _ in range(rng.choice([0, 0, 0, 1, 2]))]
        most = min(regime.num_blocks, regime.hard or regime.num_blocks) * regime.block_size
        prompt = prompt[: max(1, most - 2 * regime.block_size)]
        limit = min(len(prompt) + rng.randrange(1, 7) + regime.outgrow, most + regime.outgrow)
        if regime.window:
            limit = len(prompt) + rng.randrange(1, 14)
        tenant = f"t{arrival % regime.tenants}" if regime.tenants else ""
        limit = max(limit, len(prompt) + 1)
        stream = Stream(0, prompt, len(prompt), limit, rng.choice([0, 0, 1]), arrival, tenant)
        stream.starts = rng.choice([0, 0, 1, 2, 3, 5])
        stream.forks = rng.choice([0, 0, 1, 2]) if regime.forks else 0
        stream.turns = rng.randrange(2)
        return stream

    def _next_turn(self, stream: Stream) -> None:
        prompt = [*stream.tokens(stream.known), 33]
        most = min(self.regime.num_blocks, self.regime.hard or self.regime.num_blocks)
        if cdiv(len(prompt) + 2, self.regime.block_size) <= most:
            limit = len(prompt) + 1 + self.rng.randrange(2)
            turn = Stream(0, prompt, len(prompt), limit, stream.priority, stream.arrival + 50, stream.tenant)
            turn.starts = self.clock + self.rng.randrange(2)
            self.expected.append(turn)

    # --- building a request

    def _build(self) -> tuple[steps_pb2.StepRequest, dict[int, int]]:
        request = steps_pb2.StepRequest(
            pool="world", epoch=self.epoch, step=self.step + 1, completed_step=self.device.completed
        )
        if self.failed:
            self._tell_failure(request)
        released = {release.seq for release in request.releases}
        for stream in list(self.streams.values()):
            if stream.id not in released:
                self._end_or_commit(request, stream)
        active = [stream for stream in self.streams.values() if stream.state == "running"]
        self._fork(request, active)
        active = self._groups(request, active)
        plan = self._plan(request, active)
        for stream in sorted(self.streams.values(), key=lambda each: each.rank):
            if stream.state == "parked":
                request.resumes.add(seq=stream.id, num_tokens=max(1, stream.launched))
        for stream in sorted(self.streams.values(), key=lambda each: (each.priority, not each.again, each.arrival)):
            if stream.state in ("new", "victim") and not stream.busy:
                self._ask(request, stream)
        return request, plan

    def _tell_failure(self, request: steps_pb2.StepRequest) -> None:
        request.failed_step, self.failed = self.failed, 0
        for stream in self.streams.values():
            if stream.state in ("running", "parked"):
                request.releases.add(seq=stream.id, reason=steps_pb2.RELEASE_REASON_FAILED)
                self._start_over(stream)

    def _start_over(self, stream: Stream) -> None:
        stream.state, stream.again = "new", True
        stream.launched = stream.ended = stream.target = 0
        stream.table, stream.host = [], []
        stream.group = stream.id

    def _end_or_commit(self, request: steps_pb2.StepRequest, stream: Stream) -> None:
        if stream.known >= stream.limit and stream.state == "running" and stream.turns:
            stream.turns = 0
            self._next_turn(stream)
        if (stream.aborted or stream.known >= stream.limit) and stream.state != "done":
            if stream.state in ("running", "parked"):
                if stream.state == "running":
                    self._commit(request, stream)
                request.releases.add(seq=stream.id, reason=steps_pb2.RELEASE_REASON_FINISHED)
            stream.state = "done"
        elif stream.state == "running":
            self._commit(request, stream)

    def _commit(self, request: steps_pb2.StepRequest, stream: Stream) -> None:
        """Once per full block, and only what launched steps write."""
        written, size = min(stream.known, stream.launched), self.regime.block_size
        if stream.sent and written // size > stream.sent // size:
            commits = request.commits
            commits.seqs.append(stream.id)
            commits.starts.append(stream.sent)
            commits.counts.append(written - stream.sent)
            commits.token_ids += pack(stream.tokens(written)[stream.sent :])
            stream.sent = written

    def _fork(self, request: steps_pb2.StepRequest, active: list[Stream]) -> None:
        regime = self.regime
        for stream in list(active):
            length = 0
            if stream.forks and regime.forks == "late" and stream.known > stream.prompt:
                length = stream.known - 1
            elif stream.forks and regime.forks == "ahead" and stream.launched >= stream.prompt:
                length = stream.launched if not regime.drafts or stream.launched == stream.prompt else 0
            if not 0 < length <= stream.launched or len(stream.table) < cdiv(length, regime.block_size):
                continue
            for _ in range(stream.forks):
                active.append(self._child(request, stream, length, self._new_id()))
            stream.forks = 0

    def _child(self, request: steps_pb2.StepRequest, parent: Stream, length: int, seq: int) -> Stream:
        child = Stream(
            seq, parent.tokens(length), parent.prompt, parent.limit, parent.priority, parent.arrival, parent.tenant
        )
        child.state, child.group = "running", parent.group
        child.launched, child.ended = length, min(length, parent.ended)
        child.sent = min(parent.sent, length)
        child.table = parent.table[: cdiv(length, self.regime.block_size)]
        child.fork_point = length
        parent.fork_point = max(parent.fork_point, length)
        child.fresh_fork = parent.fresh_fork = True
        self.streams[seq] = child
        request.forks.add(parent=parent.id, children=[seq], num_tokens=length)
        return child

    def _groups(self, request: steps_pb2.StepRequest, active: list[Stream]) -> list[Stream]:
        groups: dict[int, list[Stream]] = {}
        for stream in self.streams.values():
            if stream.state in ("running", "parked", "victim", "folded"):
                groups.setdefault(stream.group, []).append(stream)
        for members in groups.values():
            if len(members) > 1 or members[0].state == "folded":
                active = self._group(request, members, active)
        return active

    def _group(self, request: steps_pb2.StepRequest, members: list[Stream], active: list[Stream]) -> list[Stream]:
        if any(each.state in ("victim", "folded") and not each.solo for each in members):
            return self._unfold(request, members, active)
        if not self.regime.beams:
            return active
        furthest = max(each.launched for each in members)
        back = all(each.state == "running" and not each.busy for each in members)
        if not back or any(each.launched < furthest for each in members):
            return [each for each in active if each not in members or (back and each.launched < furthest)]
        if self.rng.random() < 0.8 and members[0].known > members[0].launched and len(members) > 1:
            parent = self.rng.choice(members)
            dropped = self.rng.choice([each for each in members if each is not parent])
            active = [each for each in active if each is not dropped]
            active.append(self._child(request, parent, parent.launched, self._new_id()))
            request.releases.add(seq=dropped.id, reason=steps_pb2.RELEASE_REASON_FINISHED)
            dropped.state = "done"
        return active

    def _unfold(self, request: steps_pb2.StepRequest, members: list[Stream], active: list[Stream]) -> list[Stream]:
        """A recomputed group: one member comes back, the others are forked from it where they part (design 3.9)."""
        lead = next((each for each in members if each.state in ("running", "victim")), members[0])
        for each in members:
            if each.state == "victim" and each is not lead and not each.solo:
                each.state = "folded"
        if lead.state == "folded":
            lead.state = "victim"
        known = [each.tokens(each.known) for each in members]
        shortest = min(map(len, known))
        common = next((at for at in range(shortest) if len({ids[at] for ids in known}) > 1), shortest)
        common = min(common, shortest - 1)
        size = self.regime.block_size
        lead.beside = sum(cdiv(each.known + 1, size) - common // size for each in members if each is not lead)
        folded = [each for each in members if each.state == "folded"]
        lead.meet = common if folded else 0
        if self.regime.window and lead.state == "running" and lead.launched > common:
            # The lead's hits reach beyond the fork, so its window no longer covers it: the others look for their own.
            for each in folded:
                each.state, each.solo = "victim", True
            return active
        if lead.state == "running" and lead.launched >= common and not lead.busy:
            for each in folded:
                each.state, each.launched, each.ended = "running", common, common
                each.sent, each.table = min(lead.sent, common), lead.table[: cdiv(common, size)]
                each.fork_point, each.fresh_fork, each.target, each.floor = common, True, each.known, 0
                request.forks.add(parent=lead.id, children=[each.id], num_tokens=common)
                active.append(each)
            if folded:
                lead.fork_point, lead.fresh_fork = max(lead.fork_point, common), True
        elif lead.state == "running" and lead.launched >= lead.known - 1 and folded:
            active = [each for each in active if each is not lead]
        return active

    def _plan(self, request: steps_pb2.StepRequest, active: list[Stream]) -> dict[int, int]:
        """How far everybody goes in this step; asks for what that needs (rule 8)."""
        regime, plan = self.regime, dict[int, int]()
        for stream in sorted(active, key=lambda each: each.rank):
            if self.rng.random() < regime.skips or stream.launched >= stream.limit:
                continue
            prefill = stream.launched < max(stream.prompt, len(stream.base), stream.target)
            end = max(stream.prompt, stream.known, stream.target) if prefill else stream.launched + 1
            end = max(min(end, stream.launched + regime.chunk), stream.launched + 1)
            stream.drafts = 0
            if regime.drafts and not prefill:
                if any(row.owner == stream.id for step in self._still_running() for row in step.rows):
                    continue
                stream.drafts = max(0, min(regime.drafts, stream.limit - stream.launched - 1))
                end += stream.drafts
            if self.regime.window and prefill and stream.launched < stream.meet < end:
                end = stream.meet  # the others are forked here, before the window leaves it
            plan[stream.id] = end
            if cdiv(end, regime.block_size) > len(stream.table) or stream.fresh_fork or prefill:
                request.advances.seqs.append(stream.id)
                request.advances.num_tokens.append(end)
                if regime.room:
                    request.advances.rooms.append(end + regime.room)
        return plan

    def _still_running(self) -> list[DeviceStep]:
        """The steps that will be in flight when the one being built is launched."""
        return list(self.device.flight)[max(0, len(self.device.flight) - self.regime.depth + 1) :]

    def _ask(self, request: steps_pb2.StepRequest, stream: Stream) -> None:
        request.admits.add(
            seq=stream.id,
            token_ids=pack(stream.tokens(stream.known)),
            num_tokens=self.regime.chunk,
            group=stream.group if stream.group != stream.id else None,
            beside_blocks=stream.beside if stream.state == "victim" else 0,
            priority=stream.priority,
            arrival=stream.arrival,
            root=common_pb2.PrefixRoot(tenant=stream.tenant),
            again=stream.again,
        )
