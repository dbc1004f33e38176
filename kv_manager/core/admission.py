"""Admits and resumes: whole-prompt capacity, the first blocks (design 3.1, 3.2, 3.4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kv_manager.core import quotas
from kv_manager.core.block_pool import NULL_BLOCK
from kv_manager.core.capacity import MAX_TOLD
from kv_manager.core.hits import Hits, prompt_hits
from kv_manager.core.prefix import TOKEN_BYTES, Root, chain
from kv_manager.core.resumption import resume
from kv_manager.core.sequence import Sequence
from kv_manager.core.step_work import StepWork
from octavo.kv.v1 import common_pb2, steps_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that asks for a table.

    Attributes:
        chunk: the most tokens its first step computes.
        again: it was preempted or failed before; it then takes all its blocks and the room for one token at once.
        beside_blocks: what the rest of its group will need beside it.
    """

    ids: bytes
    root: Root
    chunk: int
    again: bool = False
    beside_blocks: int = 0

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.ids) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Capacity:
    """The arithmetic of an admission.

    Attributes:
        hits: the start of the prompt that is cached.
        cached_tokens: tokens that need no computing; never the whole prompt.
        granted: the length up to which the first step writes.
        table_blocks: blocks of the table it starts with.
        needed: blocks beyond its hits, those of the whole prompt and of its group counted.
        required: blocks that must be available: ``needed``, hits that lie in the free list, the watermark.
        named: blocks its tenant would use beyond those it uses.
    """

    root_digest: bytes
    hits: Hits
    cached_tokens: int
    granted: int
    table_blocks: int
    needed: int
    required: int
    named: int


@dataclass(frozen=True, slots=True)
class Never:
    """A prompt that can never be admitted.

    Attributes:
        needed: blocks it takes of an empty pool.
        available: blocks there can ever be for it.
    """

    needed: int
    available: int
    reason: steps_pb2.RejectedReason


def root_of(message: common_pb2.PrefixRoot) -> Root:
    """The root as the core keeps it."""
    return Root(message.tenant, message.salt, message.adapter)


def serve(pool: "Pool", work: StepWork) -> None:
    """Resume and admit in one list, by (priority, preempted first, arrival, id).

    After the first refusal, and in a step that preempted or left a running sequence waiting, nobody is (rule 3).
    """
    request = work.request
    queue: list[tuple[tuple[int, bool, int, int], Sequence | steps_pb2.Admit]] = [
        ((admit.priority, not admit.again, admit.arrival, admit.seq), admit) for admit in request.admits
    ]
    for item in request.resumes:
        sequence = pool.sequences.get(item.seq)
        if sequence is not None:  # else it was dropped from the host tier earlier in this request
            queue.append(((sequence.priority, False, sequence.arrival, sequence.id), sequence))
    queue.sort(key=lambda entry: entry[0])
    lengths = {item.seq: item.num_tokens for item in request.resumes}
    served: set[int] = set()
    for _, entry in queue:
        if isinstance(entry, steps_pb2.Admit):
            _admit(pool, work, entry)
        elif entry.group not in served:
            served.add(entry.group)
            resume(pool, work, entry, lengths)


def measure(pool: "Pool", prompt: Prompt) -> Capacity | Never:
    """What ``prompt`` would take now. Changes nothing.

    The whole prompt counts, although blocks are taken by chunks: else two prompts would run into each other half-way. A
    windowed pool gives blocks back on the way, so there a chunk counts alone.
    """
    if never := never_fits(pool, prompt):
        return never
    block_size, blocks, length = pool.block_size, pool.blocks, prompt.length
    quota = pool.quotas.get(prompt.root.tenant)
    root_digest = prompt.root.digest(pool.spec.model_fingerprint)
    digests = chain(root_digest, prompt.ids, 0, length // block_size, block_size)
    hits = prompt_hits(pool, digests, length, blocks.index.first)
    num_hits = len(hits.table)
    cached = min(num_hits * block_size, length - 1)
    granted = min(length, cached + prompt.chunk)
    at_once = length + 1 if prompt.again and pool.window is None else granted
    table_blocks = max(num_hits, -(-at_once // block_size))
    counted = table_blocks if pool.window is not None else max(table_blocks, -(-length // block_size))
    needed = counted - num_hits + prompt.beside_blocks
    if never := _never(pool, quota, num_hits + needed if prompt.beside_blocks else 0):
        return never
    required = needed + blocks.count_in_free_list(hits.table)
    if prompt.again:
        required += pool.readmission_reserve()
    elif pool.num_running:
        required += pool.spec.watermark_blocks
    named = needed + (quota.unnamed(hits.table) if quota is not None else 0)
    return Capacity(root_digest, hits, cached, granted, table_blocks, needed, required, named)


def never_fits(pool: "Pool", prompt: Prompt) -> Never | None:
    """A verdict that needs no look at the cache: the prompt and one token more outgrow the pool or the hard limit."""
    whole = -(-(prompt.length + 1) // pool.block_size)
    if pool.window is not None:
        whole = min(whole, -(-(pool.window + prompt.chunk) // pool.block_size) + 2)
    return _never(pool, pool.quotas.get(prompt.root.tenant), whole)


def _never(pool: "Pool", quota: quotas.Quota | None, held: int) -> Never | None:
    if held > pool.blocks.num_blocks:
        return Never(min(held, MAX_TOLD), pool.blocks.num_blocks, steps_pb2.REJECTED_REASON_POOL)
    if quota is not None and held > quota.hard:
        return Never(min(held, MAX_TOLD), quota.hard, steps_pb2.REJECTED_REASON_TENANT_LIMIT)
    return None


def chain_of(pool: "Pool", prompt: Prompt) -> Iterator[bytes]:
    """The digests of the prompt's full blocks, made one by one."""
    root_digest = prompt.root.digest(pool.spec.model_fingerprint)
    return chain(root_digest, prompt.ids, 0, prompt.length // pool.block_size, pool.block_size)


def _admit(pool: "Pool", work: StepWork, admit: steps_pb2.Admit) -> None:
    prompt = Prompt(admit.token_ids, root_of(admit.root), admit.num_tokens, admit.again, admit.beside_blocks)
    closed = pool.draining and not admit.again
    if closed or work.stalled:  # not measured, so that a long queue costs little behind its head
        if never := never_fits(pool, prompt):
            _reject(pool, work, admit.seq, never)
            return
        reason = steps_pb2.WAITING_REASON_DRAINING if closed else steps_pb2.WAITING_REASON_BEHIND
        _wait(pool, work, admit.seq, reason, 0)
        return
    capacity = measure(pool, prompt)
    if isinstance(capacity, Never):
        _reject(pool, work, admit.seq, capacity)
    elif _refused_by_quota(pool, work, prompt, capacity):
        _wait(pool, work, admit.seq, steps_pb2.WAITING_REASON_TENANT_LIMIT, capacity.named)
    elif capacity.required <= pool.blocks.available:
        _grant(pool, work, admit, prompt, capacity)
    else:
        work.stalled = True
        _wait(pool, work, admit.seq, pool.short_of(capacity.required), capacity.required)


def _refused_by_quota(pool: "Pool", work: StepWork, prompt: Prompt, capacity: Capacity) -> bool:
    quota = pool.quotas.get(prompt.root.tenant)
    return quotas.refuses(pool, work, quota, capacity.named, prompt.again)


def _grant(pool: "Pool", work: StepWork, admit: steps_pb2.Admit, prompt: Prompt, capacity: Capacity) -> None:
    """Build the table: hits first, all pinned before the first new block is taken, then what this step writes.

    position      0 ........... cached_tokens .......... granted_tokens ......... length
                  | hits      | this step computes     | later chunks           |
    """
    blocks, hits = pool.blocks, capacity.hits
    blocks.hit_all(hits.table)
    table = list(hits.table)
    table += [blocks.take() for _ in range(capacity.table_blocks - len(table))]

    group = admit.group if admit.HasField("group") else admit.seq
    sequence = Sequence(admit.seq, group, admit.priority, admit.arrival, prompt.root, capacity.root_digest)
    sequence.append_ids(prompt.ids)
    sequence.granted = capacity.granted
    sequence.digests = hits.digests
    sequence.indexed = sequence.hit_blocks = len(hits.table)
    sequence.null_blocks = hits.table.count(NULL_BLOCK)
    sequence.table = table
    sequence.readmitted_to = prompt.length + 1 if prompt.again else 0
    sequence.quota = pool.quotas.get(prompt.root.tenant)
    if sequence.quota is not None:
        sequence.quota.name(table)
    pool.add(sequence)
    pool.index_written(sequence, work.step)
    _count(pool, prompt, capacity)
    work.response.grants.add(
        seq=admit.seq,
        blocks=table,
        cached_tokens=capacity.cached_tokens,
        hit_blocks=len(hits.table),
        granted_tokens=capacity.granted,
    )


def _count(pool: "Pool", prompt: Prompt, capacity: Capacity) -> None:
    totals = pool.totals
    totals.admitted_sequences += 1
    if prompt.again:
        totals.readmitted_sequences += 1
        totals.readmitted_lookup_tokens += prompt.length
        totals.readmitted_hit_tokens += capacity.cached_tokens
    else:
        totals.lookup_tokens += prompt.length
        totals.hit_tokens += capacity.cached_tokens


def _wait(pool: "Pool", work: StepWork, seq: int, reason: steps_pb2.WaitingReason, needed: int) -> None:
    pool.greatest_seq = max(pool.greatest_seq, seq)
    pool.refused.add(seq)
    work.response.waiting.add(seq=seq, reason=reason, needed=needed)


def _reject(pool: "Pool", work: StepWork, seq: int, never: Never) -> None:
    pool.greatest_seq = max(pool.greatest_seq, seq)
    pool.refused.discard(seq)
    pool.totals.rejected_sequences += 1
    work.response.rejected.add(seq=seq, needed=never.needed, available=never.available, reason=never.reason)
