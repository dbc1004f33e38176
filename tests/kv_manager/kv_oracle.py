"""The manager once more, obvious and slow: lists and dicts, every count made from scratch. The property tests' oracle.

A digest is the prefix itself (root and ids), so no hash can hide a mistake. It reads the same requests as the real core
and answers in plain Python, in the form of ``decode``. It shares no code with the core.
"""

import math
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def unpack(token_ids: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(token_ids) // 4}I", token_ids))


@dataclass
class Answer:
    """A StepResponse in plain Python."""

    grants: dict[int, tuple[int, tuple[int, ...], int | None, int | None, int]] = field(default_factory=dict)
    replaced: list[tuple[int, int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swaps_out: list[tuple[int, int]] = field(default_factory=list)
    swaps_in: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[tuple[int, str, str, int]] = field(default_factory=list)
    waiting: list[tuple[int, str, int]] = field(default_factory=list)
    rejected: list[tuple[int, int, int]] = field(default_factory=list)
    stats: tuple[int, ...] = ()


def decode(response: steps_pb2.StepResponse) -> Answer:
    """The real core's answer in the oracle's form."""
    moves = lambda message: list(zip(message.sources, message.destinations, strict=True))  # noqa: E731
    optional = lambda grant, name: getattr(grant, name) if grant.HasField(name) else None  # noqa: E731
    stats = response.stats
    return Answer(
        grants={
            grant.seq: (
                grant.first_index,
                tuple(grant.blocks),
                optional(grant, "cached_tokens"),
                optional(grant, "hit_blocks"),
                grant.granted_tokens,
            )
            for grant in response.grants
        },
        replaced=list(zip(response.replaced.seqs, response.replaced.indexes, response.replaced.blocks, strict=True)),
        copies=moves(response.copies),
        swaps_out=moves(response.swaps_out),
        swaps_in=moves(response.swaps_in),
        preempted=[
            (
                item.seq,
                steps_pb2.PreemptionMode.Name(item.mode).removeprefix("PREEMPTION_MODE_"),
                steps_pb2.PreemptionReason.Name(item.reason).removeprefix("PREEMPTION_REASON_"),
                item.requester,
            )
            for item in response.preempted
        ],
        waiting=[
            (item.seq, steps_pb2.WaitingReason.Name(item.reason).removeprefix("WAITING_REASON_"), item.needed)
            for item in response.waiting
        ],
        rejected=[(item.seq, item.needed, item.available) for item in response.rejected],
        stats=(
            stats.free_blocks,
            stats.cached_blocks,
            stats.referenced_blocks,
            stats.fenced_blocks,
            stats.host_free_blocks,
            stats.running_sequences,
            stats.swapped_sequences,
        ),
    )


@dataclass
class Live:
    """A live sequence."""

    id: int
    group: int
    priority: int
    arrival: int
    root: tuple[str, str, str]
    ids: list[int]
    granted: int
    table: list[int]
    host: list[int] | None = None
    fork_point: int = 0
    progress_at: int = 0
    """After a readmission: it is no victim until it was granted this far."""

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.priority, self.arrival, self.group

    @property
    def low(self) -> int:
        """The lowest position it may write next."""
        return max(self.fork_point, min(self.granted, len(self.ids)))

    def prefix(self, blocks: int, size: int) -> tuple[Any, ...]:
        return (self.root, *self.ids[: blocks * size])


class Oracle:
    """One pool."""

    def __init__(self, spec: attach_pb2.PoolSpec, live: list[attach_pb2.LiveSequence] = []) -> None:  # noqa: B006
        self.spec = spec
        self.size = spec.block_size
        self.total = spec.num_blocks
        self.window = spec.window if spec.HasField("window") else None
        self.limits = {each.tenant: (each.soft_blocks, each.hard_blocks) for each in spec.tenant_limits}
        self.ordered = spec.reuse_regime == common_pb2.REUSE_REGIME_ORDERED
        self.rates = spec.rates if spec.HasField("rates") else None
        self.completed = 0
        self.step = spec.step
        self.free = list(range(1, self.total + 1))
        self.fenced: list[tuple[int, int]] = []
        self.fence: dict[int, int] = {}
        self.swap_sources: dict[int, int] = {}
        self.digest: dict[int, tuple[Any, ...]] = {}
        self.holders: dict[tuple[Any, ...], list[int]] = {}
        self.shown_by: dict[int, int] = {}
        self.host_free = list(range(spec.host_blocks))
        self.host_fenced: list[tuple[int, int]] = []
        self.parked: dict[int, int] = {}
        self.seqs: dict[int, Live] = {}
        for each in live:
            self._adopt(each)

    def _adopt(self, each: attach_pb2.LiveSequence) -> None:
        root = (each.root.tenant, each.root.salt, each.root.adapter)
        group = each.group if each.HasField("group") else each.seq
        ids = unpack(each.token_ids)
        new = Live(each.seq, group, each.priority, each.arrival, root, ids, each.computed_tokens, list(each.table))
        new.fork_point = each.fork_tokens
        if each.host_table and self.spec.host_blocks:
            new.host = [-1 if block == 2**32 - 1 else block for block in each.host_table]
            self.host_free = [block for block in self.host_free if block not in new.host]
            self.parked[group] = 0
        elif not each.table:
            return
        self.seqs[new.id] = new
        self.free = [block for block in self.free if block not in new.table]
        self._index(new, step=0)

    # --- blocks

    def refs(self, block: int) -> int:
        return sum(entry == block for each in self.seqs.values() for entry in each.table)

    def used(self, tenant: str) -> set[int]:
        return {block for each in self.seqs.values() if each.root[0] == tenant for block in each.table if block}

    def running(self) -> list[Live]:
        return [each for each in self.seqs.values() if each.host is None]

    def members(self, group: int) -> list[Live]:
        return sorted((each for each in self.seqs.values() if each.group == group), key=lambda each: each.id)

    def _forget(self, block: int) -> None:
        prefix = self.digest.pop(block, None)
        if prefix is not None:
            self.holders[prefix].remove(block)
            if not self.holders[prefix]:
                del self.holders[prefix]
            self.shown_by.pop(block, None)

    def _take(self) -> int:
        block = self.free.pop(0)
        self._forget(block)
        return block

    def _return(self, block: int) -> None:
        if block in self.digest:
            self.free.append(block)
        else:
            self.free.insert(0, block)

    def _drop(self, block: int, fence: int) -> None:
        """An entry that named ``block`` is gone already."""
        if block == 0 or self.refs(block):
            return
        fence = max(fence, self.fence.get(block, 0))
        if self.fenced and block in self.digest:
            fence = max(fence, max(step for step, _ in self.fenced))
        if fence > self.completed:
            self.fence[block] = fence
            self.fenced.append((fence, block))
        else:
            self._return(block)

    def _drop_table(self, each: Live, fence: int) -> None:
        table, each.table = each.table, []
        while table:
            block = table.pop()
            each.table = table
            self._drop(block, fence)

    def _hit(self, block: int) -> None:
        """Call before the entry is made."""
        if block in self.free:
            self.free.remove(block)
        self.fenced = [entry for entry in self.fenced if entry[1] != block]

    def _index(self, each: Live, step: int) -> None:
        for index in range(min(each.granted, len(each.ids)) // self.size):
            block = each.table[index] if index < len(each.table) else 0
            if block and block not in self.digest:
                prefix = each.prefix(index + 1, self.size)
                self.digest[block] = prefix
                self.holders.setdefault(prefix, []).append(block)
                self.shown_by[block] = step

    def _must_copy(self, block: int, leaving: int = 0) -> bool:
        return self.refs(block) - leaving > 1 or block in self.digest or block in self.swap_sources

    # --- a request

    def apply(self, request: steps_pb2.StepRequest) -> Answer:
        self.step = step = request.step
        self.answer = answer = Answer()
        if request.HasField("failed_step"):
            for block in [block for block, shown in self.shown_by.items() if shown >= request.failed_step]:
                self._forget(block)
                if block in self.free:
                    self.free.remove(block)
                    self.free.insert(0, block)
        self._complete(request.completed_step)
        if request.HasField("rates"):
            self.rates = request.rates
        self.release_fence = 0 if self.ordered else step - 1
        self.swap_fence = step if not self.ordered or self.spec.swaps_on_own_stream else 0
        self.promised, self.stalled, self.stopped = 0, False, set[str]()
        self._commit(request)
        for fork in request.forks:
            for child in fork.children:
                self._fork(self.seqs[fork.parent], child, fork.num_tokens)
        for release in request.releases:
            if release.seq in self.seqs:
                self._end(self.seqs[release.seq])
        self._advance(request)
        self._admit_and_resume(request)
        self._room(request)
        states = self._states()
        answer.stats = (
            states["free"],
            states["cached"],
            states["referenced"],
            len(self.fenced),
            len(self.host_free) + len(self.host_fenced),
            len(self.running()),
            len(self.seqs) - len(self.running()),
        )
        return answer

    def _states(self) -> Counter[str]:
        states: Counter[str] = Counter()
        for block in range(1, self.total + 1):
            if self.refs(block):
                states["referenced"] += 1
            elif block in self.free:
                states["cached" if block in self.digest else "free"] += 1
        return states

    def _complete(self, step: int) -> None:
        self.completed = step
        for entry in sorted((entry for entry in self.fenced if entry[0] <= step), key=lambda entry: entry[0]):
            self.fenced.remove(entry)
            self._return(entry[1])
        for entry in [entry for entry in self.host_fenced if entry[0] <= step]:
            self.host_fenced.remove(entry)
            self.host_free.append(entry[1])
        self.shown_by = {block: shown for block, shown in self.shown_by.items() if shown > step}
        self.swap_sources = {block: started for block, started in self.swap_sources.items() if started > step}

    def _commit(self, request: steps_pb2.StepRequest) -> None:
        ids = unpack(request.commits.token_ids)
        for seq, count in zip(request.commits.seqs, request.commits.counts, strict=True):
            each = self.seqs[seq]
            each.ids += ids[:count]
            ids = ids[count:]
            each.granted = max(each.granted, len(each.ids))
            self._index(each, self.step)

    def _fork(self, parent: Live, child: int, length: int) -> None:
        new = Live(child, parent.group, parent.priority, parent.arrival, parent.root, parent.ids[:length], length, [])
        new.table = parent.table[: cdiv(length, self.size)]
        new.fork_point = length
        parent.fork_point = max(parent.fork_point, length)
        self.seqs[child] = new

    def _end(self, each: Live) -> None:
        self._drop_table(each, self.release_fence)
        self._unpark(each, self.step)
        del self.seqs[each.id]
        if not self.members(each.group):
            self.parked.pop(each.group, None)

    def _unpark(self, each: Live, fence: int) -> None:
        host, each.host = each.host or [], None
        for block in dict.fromkeys(host):
            if block >= 0 and not any(block in (other.host or []) for other in self.seqs.values()):
                if fence:
                    self.host_fenced.append((fence, block))
                else:
                    self.host_free.append(block)

    # --- advances

    def _advance(self, request: steps_pb2.StepRequest) -> None:
        rows = dict(zip(request.advances.seqs, request.advances.num_tokens, strict=True))
        order = sorted(rows, key=lambda seq: (*self.seqs[seq].rank, seq))
        items: dict[int, list[int]] = {}
        for seq in order:
            items.setdefault(self.seqs[seq].group, []).append(seq)
        for group in items.values():
            self._grow({seq: rows[seq] for seq in group})

    def _grow(self, rows: dict[int, int]) -> None:
        if any(seq not in self.seqs or self.seqs[seq].host is not None for seq in rows):
            return
        members = [self.seqs[seq] for seq in rows]
        plans = []
        for each in members:
            self._slide(each)
        for each in members:
            length, hits, cached = rows[each.id], self._late_hits(each), None
            if hits:
                start = each.granted + len(hits) * self.size
                length = min(len(each.ids), start + length - each.granted)
                cached = min(start, length - 1)
            plans.append((each, length, hits, cached))

        def copies() -> int:
            count, leaving = 0, Counter[int]()
            for each in members:
                index = each.low // self.size
                if index < len(each.table) and self._must_copy(each.table[index], leaving[each.table[index]]):
                    count += 1
                    leaving[each.table[index]] += 1
            return count

        def new() -> int:
            return sum(max(0, cdiv(length, self.size) - len(e.table) - len(hits)) for e, length, hits, _ in plans)

        hit = [block for _, _, hits, _ in plans for block in hits]
        first = members[0]
        if len(members) == 1 and self.window is None:
            alone = cdiv(plans[0][1], self.size)
        else:
            alone = len({b for e in self.members(first.group) for b in e.table if b}) + copies() + new() + len(hit)
        hard = self.limits.get(first.root[0], (0, math.inf))[1]
        if alone > min(self.total, hard):
            self._reject(first, alone, self.total if alone > self.total else int(hard))
            return
        unused = lambda: len(set(hit) - self.used(first.root[0]))  # noqa: E731
        while len(self.used(first.root[0])) + copies() + new() + unused() > hard:
            victim = self._worst([e for e in self._candidates(first) if e.root[0] == first.root[0]])
            self.stopped.add(first.root[0])
            self._preempt(victim, first, "TENANT_LIMIT")
            if victim.group == first.group:
                return
        while len(self.free) < (need := copies() + new() + sum(block in self.free for block in hit)):
            coming = len(self.fenced) - self.promised
            if len(self.free) + coming >= need:
                self.promised += need - len(self.free)
                self.stalled = True
                self.answer.waiting += [(each.id, "FENCE", need) for each in members]
                return
            victim = self._worst(self._candidates(first))
            self.stalled = True
            self._preempt(victim, first, "POOL")
            if victim.group == first.group:
                return
        for block in hit:
            self._hit(block)
        for each, length, hits, cached in plans:
            self._grant(each, length, hits, cached)

    def _grant(self, each: Live, length: int, hits: list[int], cached: int | None) -> None:
        index = each.low // self.size
        if index < len(each.table) and self._must_copy(each.table[index]):
            source, destination = each.table[index], self._take()
            self.fence[source] = max(self.fence.get(source, 0), self.step)
            self.fence[destination] = max(self.fence.get(destination, 0), self.step)
            each.table[index] = destination
            self._drop(source, self.release_fence)
            self.answer.copies.append((source, destination))
            self.answer.replaced.append((each.id, index, destination))
        first = len(each.table)
        each.table += hits
        while len(each.table) < cdiv(length, self.size):
            each.table.append(self._take())
        floor = first + len(hits) if hits else None
        self.answer.grants[each.id] = (first, tuple(each.table[first:]), cached, floor, length)
        each.granted = max(each.granted, length)
        self._index(each, self.step)

    def _late_hits(self, each: Live) -> list[int]:
        hits: list[int] = []
        if len(each.table) * self.size != each.granted:
            return hits
        while each.granted + (len(hits) + 1) * self.size <= len(each.ids):
            holders = self.holders.get(each.prefix(each.granted // self.size + len(hits) + 1, self.size))
            if not holders:
                break
            hits.append(holders[0])
        return hits

    def _slide(self, each: Live) -> None:
        if self.window is None:
            return
        for index, block in enumerate(each.table):
            if block and (index + 1) * self.size <= each.low - self.window + 1:
                each.table[index] = 0
                self._drop(block, self.release_fence)
                self.answer.replaced.append((each.id, index, 0))

    def _reject(self, each: Live, needed: int, available: int) -> None:
        for member in self.members(each.group):
            self.answer.rejected.append((member.id, needed, available))
            self._end(member)

    # --- preemption

    def _candidates(self, requester: Live) -> list[Live]:
        return [e for e in self.running() if (e.table or e is requester) and e.rank >= requester.rank]

    def _worst(self, candidates: list[Live]) -> Live:
        progressed = [each for each in candidates if each.granted >= each.progress_at]
        return max(progressed or candidates, key=lambda each: each.rank)

    def _preempt(self, victim: Live, requester: Live, reason: str) -> None:
        members = self.members(victim.group)
        distinct = list(dict.fromkeys(block for each in members for block in each.table if block))
        if self._swap_is_cheaper(members, distinct) and self._make_host_room(len(distinct), requester):
            place = {block: self.host_free.pop(0) for block in distinct}
            self.answer.swaps_out += list(place.items())
            if self.swap_fence:
                for block in distinct:
                    self.swap_sources[block] = self.swap_fence
                    self.fence[block] = max(self.fence.get(block, 0), self.swap_fence)
            for each in members:
                host = [place.get(block, -1) for block in each.table]
                self._drop_table(each, self.swap_fence)
                each.host = host
            self.parked[victim.group] = self.step
            mode = "SWAP"
        else:
            for each in members:
                self._drop_table(each, self.release_fence)
                del self.seqs[each.id]
            mode = "RECOMPUTE"
        self.answer.preempted += [(each.id, mode, reason, requester.id) for each in members]

    def _swap_is_cheaper(self, members: list[Live], distinct: list[int]) -> bool:
        if len(distinct) > self.spec.host_blocks:
            return False
        if self.rates is None:
            return True
        lost: dict[int, int] = {}
        for each in members:
            kept = True
            for index, block in enumerate(each.table):
                others = any(block in other.table for other in self.seqs.values() if other.group != each.group)
                kept = kept and others and block in self.digest
                if block and not kept:
                    lost.setdefault(block, max(0, min(self.size, each.granted - index * self.size)))
        recompute = sum(lost.values()) / self.rates.prefill_tokens_per_second
        return 2 * len(distinct) * self.spec.block_bytes / self.rates.copy_bytes_per_second <= recompute

    def _make_host_room(self, needed: int, requester: Live) -> bool:
        dropped: list[int] = []
        room = len(self.host_free)
        for group, step in self.parked.items():
            if room >= needed or step == self.step:
                break
            dropped.append(group)
            room += len({block for each in self.members(group) for block in each.host or [] if block >= 0})
        if room < needed or not needed:
            return False
        for group in dropped:
            for each in self.members(group):
                self._unpark(each, fence=0)
                del self.seqs[each.id]
                self.answer.preempted.append((each.id, "RECOMPUTE", "HOST_ROOM", requester.id))
            del self.parked[group]
        return True

    # --- admits and resumes

    def _admit_and_resume(self, request: steps_pb2.StepRequest) -> None:
        queue: list[tuple[tuple[int, bool, int, int], Any]] = []
        for admit in request.admits:
            queue.append(((admit.priority, not admit.again, admit.arrival, admit.seq), admit))
        for resume in request.resumes:
            each = self.seqs.get(resume.seq)
            if each is not None:
                queue.append(((each.priority, False, each.arrival, each.id), each))
        lengths = {resume.seq: resume.num_tokens for resume in request.resumes}
        done: set[int] = set()
        for _, item in sorted(queue, key=lambda entry: entry[0]):
            if isinstance(item, steps_pb2.Admit):
                self._admit(item)
            elif item.group not in done:
                done.add(item.group)
                self._resume(item, lengths)

    def _reserve(self) -> int:
        return self.spec.watermark_blocks + len(self.running()) + 1 if self.running() else 0

    def _short(self, required: int) -> str:
        return "FENCE" if required <= len(self.free) + len(self.fenced) else "POOL"

    def _tenant_refuses(self, tenant: str, needed: int, again: bool) -> bool:
        if tenant not in self.limits:
            return False
        soft, hard = self.limits[tenant]
        used = len(self.used(tenant))
        running = len([each for each in self.running() if each.root[0] == tenant and each.table])
        over = used + needed + (running + 1 if again and running else 0) > hard or (running and used + needed > soft)
        if over or tenant in self.stopped:
            self.stopped.add(tenant)
            return True
        return False

    def _prompt_hits(self, root: tuple[str, str, str], ids: list[int]) -> list[int]:
        holders = [self.holders.get((root, *ids[: (i + 1) * self.size])) for i in range(len(ids) // self.size)]
        for count in range(len(holders), 0, -1):
            hidden = 0
            if self.window is not None:
                at = min(count * self.size, len(ids) - 1)
                hidden = max(0, at - self.window + 1) // self.size
            if all(holders[hidden:count]):
                return [0] * hidden + [held[0] for held in holders[hidden:count] if held]
        return []

    def _admit(self, admit: steps_pb2.Admit) -> None:
        answer, size = self.answer, self.size
        root = (admit.root.tenant, admit.root.salt, admit.root.adapter)
        ids = unpack(admit.token_ids)
        length = len(ids)
        limit = min(self.total, self.limits.get(root[0], (0, math.inf))[1])
        whole = cdiv(length + 1, size)
        if self.window is not None:
            whole = min(whole, cdiv(self.window + admit.num_tokens, size) + 2)
        if whole > limit:
            answer.rejected.append((admit.seq, whole, self.total if whole > self.total else int(limit)))
            return
        if self.stalled:
            answer.waiting.append((admit.seq, "BEHIND", 0))
            return
        hits = self._prompt_hits(root, ids)
        cached = min(len(hits) * size, length - 1)
        granted = min(length, cached + admit.num_tokens)
        at_once = length + 1 if admit.again and self.window is None else granted
        blocks = max(len(hits), cdiv(at_once, size))
        counted = blocks if self.window is not None else max(blocks, cdiv(length, size))
        needed = counted - len(hits) + admit.beside_blocks
        if admit.beside_blocks and len(hits) + needed > limit:
            held = len(hits) + needed
            answer.rejected.append((admit.seq, held, self.total if held > self.total else int(limit)))
            return
        named = needed + len({block for block in hits if block} - self.used(root[0]))
        if self._tenant_refuses(root[0], named, admit.again):
            answer.waiting.append((admit.seq, "TENANT_LIMIT", named))
            return
        required = needed + sum(block in self.free for block in hits)
        if admit.again:
            required += self._reserve()
        elif self.running():
            required += self.spec.watermark_blocks
        if required > len(self.free):
            self.stalled = True
            answer.waiting.append((admit.seq, self._short(required), required))
            return
        for block in hits:
            self._hit(block)
        floor = len(hits)
        group = admit.group if admit.HasField("group") else admit.seq
        new = Live(admit.seq, group, admit.priority, admit.arrival, root, ids, granted, hits)
        self.seqs[new.id] = new
        while len(new.table) < blocks:
            new.table.append(self._take())
        new.progress_at = length + 1 if admit.again else 0
        answer.grants[new.id] = (0, tuple(new.table), cached, floor, granted)
        self._index(new, self.step)

    def _resume(self, first: Live, lengths: dict[int, int]) -> None:
        answer, members = self.answer, self.members(first.group)
        told = {each.id: lengths.get(each.id, max(1, each.granted, len(each.ids))) for each in members}
        if self.stalled:
            answer.waiting += [(each.id, "BEHIND", 0) for each in members]
            return
        if self.swap_fence and self.parked[first.group] > self.completed:
            self.stalled = True
            answer.waiting += [(each.id, "SWAPPING", 0) for each in members]
            return
        hosts = {each.id: each.host or [] for each in members}
        parked = list(dict.fromkeys(block for host in hosts.values() for block in host if block >= 0))
        needed = len(parked)
        needed += sum(max(0, cdiv(told[seq] + 1, self.size) - len(host)) for seq, host in hosts.items())
        last = Counter(host[-1] for seq, host in hosts.items() if host and host[-1] >= 0 and told[seq] % self.size)
        needed += sum(count - 1 for count in last.values())
        hard = self.limits.get(first.root[0], (0, math.inf))[1]
        if needed > min(self.total, hard):
            self._reject(first, needed, self.total if needed > self.total else int(hard))
            return
        if self._tenant_refuses(first.root[0], needed, again=True):
            answer.waiting += [(each.id, "TENANT_LIMIT", needed) for each in members]
            return
        required = needed + self._reserve()
        if required > len(self.free):
            self.stalled = True
            answer.waiting += [(each.id, self._short(required), required) for each in members]
            return
        place = {block: self._take() for block in parked}
        answer.swaps_in += list(place.items())
        for each in members:
            each.table = [place.get(block, 0) for block in hosts[each.id]]
            self._unpark(each, self.step)
        del self.parked[first.group]
        for each in members:
            while len(each.table) < cdiv(told[each.id] + 1, self.size):
                each.table.append(self._take())
            each.progress_at = told[each.id] + 1
            answer.grants[each.id] = (0, tuple(each.table), None, None, each.granted)
        for each in members:
            self._index(each, self.step)

    def _room(self, request: steps_pb2.StepRequest) -> None:
        if self.stalled or not request.advances.rooms:
            return
        rooms = dict(zip(request.advances.seqs, request.advances.rooms, strict=True))
        for seq in sorted((seq for seq in rooms if seq in self.seqs), key=lambda seq: (*self.seqs[seq].rank, seq)):
            each = self.seqs[seq]
            soft = self.limits.get(each.root[0], (math.inf, 0))[0]
            while (
                seq in self.answer.grants
                and len(each.table) < min(cdiv(rooms[seq], self.size), self.total)
                and len(self.free) > self.spec.watermark_blocks + 1
                and len(self.used(each.root[0])) < soft
            ):
                each.table.append(self._take())
                first, blocks, cached, floor, length = self.answer.grants[seq]
                self.answer.grants[seq] = (first, (*blocks, each.table[-1]), cached, floor, length)
