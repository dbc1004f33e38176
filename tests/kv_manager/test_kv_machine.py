"""A hypothesis state machine over messages: any valid request, sensible or not, against the oracle.

The worlds of ``test_kv_worlds`` behave as workers do; here lengths jump, commits trickle, forks happen anywhere and
steps complete late.
"""

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_oracle import Live, Oracle, decode

from kv_manager.core import integrity
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2

STEPS = int(os.environ.get("OCTAVO_TEST_KV_MACHINE_STEPS", "60"))


def pack(ids):
    return b"".join(token.to_bytes(4, "little") for token in ids)


class ManagerMachine(RuleBasedStateMachine):
    """Rules add items to the next request; ``send`` sends it to the core and the oracle."""

    @initialize(
        size=st.integers(1, 4),
        blocks=st.integers(4, 16),
        host=st.sampled_from([0, 4, 16]),
        regime=st.sampled_from([common_pb2.REUSE_REGIME_ORDERED, common_pb2.REUSE_REGIME_FENCED]),
        own_stream=st.booleans(),
        watermark=st.integers(0, 2),
        window=st.sampled_from([None, None, 3, 5]),
        limits=st.booleans(),
        rates=st.booleans(),
    )
    def attach(self, size, blocks, host, regime, own_stream, watermark, window, limits, rates):
        self.size = size
        spec = attach_pb2.PoolSpec(
            pool="pool",
            worker_id="machine",
            num_blocks=blocks,
            block_size=size,
            block_bytes=100,
            host_blocks=host,
            reuse_regime=regime,
            swaps_on_own_stream=own_stream,
            watermark_blocks=watermark,
            window=window,
        )
        if limits:
            spec.tenant_limits.add(tenant="a", soft_blocks=max(1, blocks // 2 - 1), hard_blocks=max(2, blocks // 2))
        if rates:
            spec.rates.prefill_tokens_per_second, spec.rates.copy_bytes_per_second = 10.0, 500.0
        self.manager = Manager()
        self.epoch = self.manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
        self.pool = self.manager.pools()[0]
        self.oracle = Oracle(spec)
        self.victims: dict[int, tuple[list[int], Live]] = {}
        self.refused: dict[int, steps_pb2.Admit] = {}
        self.heard = 0
        self.unwritten: set[int] = set()
        self._next()

    def _next(self):
        self.request = steps_pb2.StepRequest(pool="pool", epoch=self.epoch, step=self.pool.step + 1)
        self.touched: set[int] = set()
        self.children: set[int] = set()
        self.lengths: dict[int, int] = {}

    def _pick(self, data, running=True):
        found = [
            each
            for each in self.oracle.seqs.values()
            if (each.host is None) == running and each.id not in self.touched and each.id not in self.children
        ]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data(), shared=st.integers(0, 9), own=st.integers(1, 4), chunk=st.integers(1, 9))
    def admit(self, data, shared, own, chunk):
        ids = [*range(1, shared + 1), *data.draw(st.lists(st.integers(20, 21), min_size=own, max_size=own))]
        self.heard += 1
        self.request.admits.add(
            seq=self.heard,
            token_ids=pack(ids),
            num_tokens=chunk,
            priority=data.draw(st.integers(0, 2)),
            arrival=data.draw(st.integers(0, 5)),
            root=common_pb2.PrefixRoot(tenant=data.draw(st.sampled_from(["", "a"]))),
        )

    @precondition(lambda self: self.refused)
    @rule(data=st.data())
    def ask_again(self, data):
        seq = data.draw(st.sampled_from(sorted(self.refused)))
        self.request.admits.append(self.refused.pop(seq))

    @precondition(lambda self: self.victims)
    @rule(data=st.data(), chunk=st.integers(1, 9), beside=st.integers(0, 3))
    def come_back(self, data, chunk, beside):
        seq = data.draw(st.sampled_from(sorted(self.victims)))
        ids, live = self.victims.pop(seq)
        if ids and seq not in self.oracle.seqs:
            self.request.admits.add(
                seq=seq,
                token_ids=pack(ids),
                num_tokens=chunk,
                beside_blocks=beside,
                priority=live.priority,
                arrival=live.arrival,
                root=common_pb2.PrefixRoot(tenant=live.root[0]),
                again=True,
            )

    @rule(data=st.data(), count=st.integers(1, 4))
    def commit(self, data, count):
        each = self._pick(data, running=data.draw(st.booleans()))
        if each is None or each.id in self.request.commits.seqs:
            return
        room = len(each.table or each.host or []) * self.size - len(each.ids)
        if each.id in self.unwritten:  # nothing beyond its fork yet
            room = each.fork_point - len(each.ids)
        if room > 0:
            count = min(count, room)
            self.request.commits.seqs.append(each.id)
            self.request.commits.starts.append(len(each.ids))
            self.request.commits.counts.append(count)
            self.request.commits.token_ids += pack([30 + data.draw(st.integers(0, 1)) for _ in range(count)])
            self.lengths[each.id] = max(self.lengths.get(each.id, 0), len(each.ids) + count)

    @rule(data=st.data(), count=st.integers(1, 3))
    def fork(self, data, count):
        each = self._pick(data)
        if each is None:
            return
        least = each.low if self.oracle.window is not None else 0
        most = len(each.table) * self.size
        if least > most:
            return
        length = data.draw(st.integers(least, most))
        children = range(self.heard + 1, self.heard + count + 1)
        self.heard += count
        self.children.update(children)
        self.request.forks.add(parent=each.id, children=children, num_tokens=length)
        self.lengths[each.id] = max(self.lengths.get(each.id, 0), length)
        for child in children:
            self.lengths[child] = length

    @rule(data=st.data(), more=st.integers(1, 7), room=st.integers(0, 6))
    def advance(self, data, more, room):
        each = self._pick(data)
        if each is None or each.id in self.request.advances.seqs:
            return
        length = max(each.low, self.lengths.get(each.id, 0)) + more
        self.touched.add(each.id)
        self._advance(each.id, length, room)

    @precondition(lambda self: self.children)
    @rule(data=st.data(), more=st.integers(1, 3))
    def advance_child(self, data, more):
        seq = data.draw(st.sampled_from(sorted(self.children)))
        self.children.discard(seq)
        self._advance(seq, self.lengths[seq] + more, 0)

    def _advance(self, seq, length, room):
        self.request.advances.seqs.append(seq)
        self.request.advances.num_tokens.append(length)
        self.request.advances.rooms.append(length + room if room else 0)

    @rule(data=st.data(), more=st.integers(0, 3))
    def resume(self, data, more):
        each = self._pick(data, running=False)
        if each is not None:
            self.touched.add(each.id)
            length = max(1, each.low, self.lengths.get(each.id, 0), min(each.granted, len(each.host) * self.size))
            self.request.resumes.add(seq=each.id, num_tokens=length + more)

    @rule(data=st.data())
    def release(self, data):
        each = self._pick(data, running=data.draw(st.booleans()))
        if each is not None and each.id not in self.request.advances.seqs:
            self.touched.add(each.id)
            self.request.releases.add(seq=each.id)

    @rule(more=st.integers(1, 4), lag=st.integers(0, 2))
    def grow_everyone(self, more, lag):
        """As decoding does, and it fills pools: everybody asks for more, and the step is sent."""
        for each in self.oracle.running():
            if each.id not in self.touched and each.id not in self.request.advances.seqs:
                self._advance(each.id, max(each.low, each.granted, self.lengths.get(each.id, 0)) + more, 0)
        for each in self.oracle.seqs.values():
            if each.host is not None and each.id not in self.touched and self.pool.step % 2:
                self.request.resumes.add(seq=each.id, num_tokens=max(1, len(each.host) * self.size - 1, each.low))
        self._send(max(self.pool.blocks.completed_step, self.pool.step - lag))

    @precondition(lambda self: self.pool.step % 5 == 4 and self.pool.blocks.completed_step < self.pool.step)
    @rule(data=st.data())
    def fail(self, data):
        """Every sequence is released; the request says nothing else about them."""
        self._next()
        self.request.failed_step = data.draw(st.integers(self.pool.blocks.completed_step + 1, self.pool.step))
        for seq, each in self.oracle.seqs.items():
            self.request.releases.add(seq=seq)
            self.touched.add(seq)
            self.victims[seq] = (list(each.ids), each)
        self._send(self.pool.step)

    @rule(lag=st.integers(0, 3), twice=st.booleans())
    def send(self, lag, twice):
        self._send(max(self.pool.blocks.completed_step, self.pool.step - lag), twice)

    def _send(self, completed, twice=False):
        request = self.request
        request.completed_step = completed
        before = {seq: (list(each.ids), each) for seq, each in self.oracle.seqs.items()}
        admits = {admit.seq: admit for admit in request.admits}
        response = self.manager.step(request)
        assert decode(response) == self.oracle.apply(request)
        if twice:
            digest = integrity.state_digest(self.pool)
            assert self.manager.step(request) == response
            assert integrity.state_digest(self.pool) == digest
        for item in response.waiting:
            if item.seq in admits:
                self.refused[item.seq] = admits[item.seq]
        self.unwritten.update(child for fork in request.forks for child in fork.children)
        self.unwritten.difference_update(grant.seq for grant in response.grants if grant.seq in request.advances.seqs)
        for item in response.preempted:
            if item.mode == steps_pb2.PREEMPTION_MODE_RECOMPUTE and item.seq in before:
                self.victims[item.seq] = before[item.seq]
        self._next()

    @invariant()
    def everything_adds_up(self):
        if not hasattr(self, "pool"):
            return
        violations = integrity.violations(self.pool)
        assert violations == [], violations
        assert list(self.pool.blocks.grant_order()) == self.oracle.free
        assert {block for block, digest in enumerate(self.pool.blocks.digest) if digest} == set(self.oracle.digest)


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=60, stateful_step_count=STEPS, deadline=None)
