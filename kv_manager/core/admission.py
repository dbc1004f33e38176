"""Admits and resumes: prefix hits, whole-prompt capacity, the first blocks (design 3.1, 3.2, 3.4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        again: it was preempted or failed before; it then takes all its blocks and the room for one token at once.
        beside_blocks: what the rest of its group will need beside it.
    """

    ids: bytes
    root: Root
    again: bool
    beside_blocks: int

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.ids) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Capacity:
    """The arithmetic of an admission.

    Attributes:
        hits: indexed blocks of the prompt from its start on.
        digests: the digests of ``hits``.
        cached_tokens: tokens that need no computing; never the whole prompt.
        required: blocks that must be available: the whole prompt's not hit, hits that lie in the free list, watermark.
        never: blocks the prompt takes of an empty pool if it takes more than there are, else 0.
    """

    root_digest: bytes
    hits: list[int]
    digests: list[bytes]
    cached_tokens: int
    required: int
    never: int


def root_of(message: common_pb2.PrefixRoot) -> Root:
    """The root as the core keeps it."""
    return Root(message.tenant, message.salt, message.adapter)


def serve(pool: "Pool", work: StepWork) -> None:
    """Resume and admit in one list, by (priority, preempted first, arrival, id).

    After the first refusal, and in a step that preempted or left a running sequence waiting, nobody is (rule 3).
    """
    request = work.request
    if not request.admits and not request.resumes:
        return
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


def measure(pool: "Pool", prompt: Prompt) -> Capacity:
    """What ``prompt`` would take now. Changes nothing."""
    block_size, blocks = pool.block_size, pool.blocks
    root_digest = prompt.root.digest(pool.spec.model_fingerprint)
    hits, digests = _find_hits(pool, root_digest, prompt)
    length = prompt.length
    whole = -(-(length + 1) // block_size)
    needed = -(-(length + prompt.again) // block_size) - len(hits) + prompt.beside_blocks
    required = needed + sum(map(blocks.in_free_list, hits))
    if prompt.again:
        required += pool.readmission_reserve()
    elif pool.num_running:
        required += pool.spec.watermark_blocks
    return Capacity(
        root_digest=root_digest,
        hits=hits,
        digests=digests,
        cached_tokens=min(len(hits) * block_size, length - 1),
        required=required,
        never=max(whole, len(hits) + needed) if max(whole, len(hits) + needed) > blocks.num_blocks else 0,
    )


def _find_hits(pool: "Pool", root_digest: bytes, prompt: Prompt) -> tuple[list[int], list[bytes]]:
    hits: list[int] = []
    digests: list[bytes] = []
    first_holder = pool.blocks.first_holder
    for digest in chain_of(prompt, root_digest, pool.block_size):
        block = first_holder(digest)
        if not block:
            break
        hits.append(block)
        digests.append(digest)
    return hits, digests


def confirmed_tokens(pool: "Pool", prompt: Prompt) -> int:
    """Tokens of ``prompt`` that completed steps have written, whole blocks from its start, never its last token."""
    root_digest = prompt.root.digest(pool.spec.model_fingerprint)
    hits = 0
    for digest in chain_of(prompt, root_digest, pool.block_size):
        if not pool.blocks.confirmed(digest):
            break
        hits += 1
    return min(hits * pool.block_size, prompt.length - 1)


def chain_of(prompt: Prompt, root_digest: bytes, block_size: int) -> Iterator[bytes]:
    """The digests of the prompt's full blocks, made one by one."""
    return chain(root_digest, prompt.ids, 0, prompt.length // block_size, block_size)


def _admit(pool: "Pool", work: StepWork, admit: steps_pb2.Admit) -> None:
    prompt = Prompt(admit.token_ids, root_of(admit.root), admit.again, admit.beside_blocks)
    blocks = pool.blocks
    whole = -(-(prompt.length + 1) // pool.block_size)
    if whole > blocks.num_blocks:
        _reject(pool, work, admit.seq, whole)
        return
    if pool.draining and not prompt.again:
        _wait(pool, work, admit.seq, steps_pb2.WAITING_REASON_DRAINING, 0)
        return
    if work.stalled:
        _wait(pool, work, admit.seq, steps_pb2.WAITING_REASON_BEHIND, 0)
        return
    capacity = measure(pool, prompt)
    if capacity.never:
        _reject(pool, work, admit.seq, capacity.never)
    elif capacity.required <= blocks.available:
        _grant(pool, work, admit, prompt, capacity)
    else:
        work.stalled = True
        _wait(pool, work, admit.seq, pool.short_of(capacity.required), capacity.required)


def _grant(pool: "Pool", work: StepWork, admit: steps_pb2.Admit, prompt: Prompt, capacity: Capacity) -> None:
    """Build the table: hits first, all pinned before the first new block is taken, then what this step writes.

    position      0 ........... cached_tokens .......... granted_tokens ......... length
                  | hits      | this step computes     | later chunks           |
    """
    blocks, block_size, length = pool.blocks, pool.block_size, prompt.length
    granted = min(length, capacity.cached_tokens + admit.num_tokens)
    table_tokens = length + 1 if prompt.again else granted
    for block in capacity.hits:
        blocks.hit(block)
    table = list(capacity.hits)
    while len(table) * block_size < table_tokens:
        table.append(blocks.take())

    group = admit.group if admit.HasField("group") else admit.seq
    sequence = Sequence(admit.seq, group, admit.priority, admit.arrival, prompt.root, capacity.root_digest)
    sequence.append_ids(prompt.ids)
    sequence.granted = granted
    sequence.digests = capacity.digests
    sequence.indexed = sequence.hit_blocks = len(capacity.hits)
    sequence.table = table
    sequence.readmitted_to = length + 1 if prompt.again else 0
    pool.add(sequence)
    pool.index_written(sequence, work.step)
    _count(pool, prompt, capacity)
    work.response.grants.add(
        seq=admit.seq,
        blocks=table,
        cached_tokens=capacity.cached_tokens,
        hit_blocks=len(capacity.hits),
        granted_tokens=granted,
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


def _reject(pool: "Pool", work: StepWork, seq: int, needed: int) -> None:
    pool.greatest_seq = max(pool.greatest_seq, seq)
    pool.refused.discard(seq)
    pool.totals.rejected_sequences += 1
    work.response.rejected.add(
        seq=seq, needed=needed, available=pool.blocks.num_blocks, reason=steps_pb2.REJECTED_REASON_POOL
    )
