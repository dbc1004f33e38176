"""Whole-request validation before anything changes (rule 2): one bad item refuses the request without effect."""

import math
from typing import TYPE_CHECKING

from kv_manager.core.errors import bad_item
from kv_manager.core.prefix import TOKEN_BYTES
from kv_manager.core.prompt_size import validate_prompt_blocks
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2
from service.errors import invalid_argument

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

MAX_NAME_BYTES = 256
MAX_BLOCK_SIZE = 65_536
MAX_FIRST_STEP = 1 << 62
"""Fences are kept as signed 64-bit steps; from here on no pool lives long enough to reach their end."""
MAX_SEQUENCE_ID = (1 << 63) - 1
"""Ids grow with each new request: one at the end of u64 would leave no room for the next."""


def validate_spec(spec: attach_pb2.PoolSpec, max_blocks: int) -> None:
    """Refuse a pool that cannot be served as described.

    Raises:
        ServiceError: INVALID_ARGUMENT naming the field, or UNIMPLEMENTED naming the capability.
    """
    if not 1 <= len(spec.pool.encode()) <= MAX_NAME_BYTES:
        raise invalid_argument("pool.pool", f"must have 1 to {MAX_NAME_BYTES} bytes")
    if not 1 <= len(spec.worker_id.encode()) <= MAX_NAME_BYTES:
        raise invalid_argument("pool.worker_id", f"must have 1 to {MAX_NAME_BYTES} bytes")
    if not 1 <= spec.num_blocks <= max_blocks:
        raise invalid_argument("pool.num_blocks", f"is {spec.num_blocks}, must be 1 to {max_blocks}")
    if not 1 <= spec.block_size <= MAX_BLOCK_SIZE:
        raise invalid_argument("pool.block_size", f"is {spec.block_size}, must be 1 to {MAX_BLOCK_SIZE}")
    if spec.step > MAX_FIRST_STEP:
        raise invalid_argument("pool.step", f"is {spec.step}, must be at most {MAX_FIRST_STEP}")
    if spec.watermark_blocks >= spec.num_blocks:
        raise invalid_argument("pool.watermark_blocks", f"is {spec.watermark_blocks} of {spec.num_blocks} blocks")
    if spec.reuse_regime not in (common_pb2.REUSE_REGIME_ORDERED, common_pb2.REUSE_REGIME_FENCED):
        raise invalid_argument("pool.reuse_regime", "must be ordered or fenced", reason="UNSPECIFIED")
    if spec.HasField("rates"):
        _validate_rates("pool.rates", spec.rates)
    if spec.host_blocks > max_blocks:
        raise invalid_argument("pool.host_blocks", f"is {spec.host_blocks}, must be at most {max_blocks}")
    if spec.host_blocks and not spec.block_bytes:
        raise invalid_argument("pool.block_bytes", "must be told, to price swaps to the host tier")
    if spec.HasField("window") and spec.window == 0:
        raise invalid_argument("pool.window", "must be at least 1, or absent")
    tenants: set[str] = set()
    for row, limit in enumerate(spec.tenant_limits):
        if len(limit.tenant.encode()) > MAX_NAME_BYTES:
            raise invalid_argument(f"pool.tenant_limits[{row}].tenant", f"must have at most {MAX_NAME_BYTES} bytes")
        if limit.tenant in tenants:
            raise invalid_argument(f"pool.tenant_limits[{row}]", f"tenant {limit.tenant!r} appears twice")
        tenants.add(limit.tenant)
        if not 1 <= limit.soft_blocks <= limit.hard_blocks:
            raise invalid_argument(
                f"pool.tenant_limits[{row}]", f"soft {limit.soft_blocks}, hard {limit.hard_blocks}: 1 <= soft <= hard"
            )


def validate_step(pool: "Pool", request: steps_pb2.StepRequest) -> None:
    """Refuse a request with a bad item, before anything changes.

    Raises:
        ServiceError: INVALID_ARGUMENT naming the item, or UNIMPLEMENTED naming the capability.
    """
    _validate_head(pool, request)
    check = _StepCheck(pool, request)
    if request.HasField("commits"):
        check.commits()
    if request.forks:
        check.forks()
    if request.releases:
        check.releases()
    if request.HasField("failed_step"):
        check.failure()
    if request.HasField("advances"):
        check.advances()
    if request.resumes:
        check.resumes()
    if request.admits:
        check.admits()


def _validate_head(pool: "Pool", request: steps_pb2.StepRequest) -> None:
    completed = request.completed_step
    if not pool.blocks.completed_step <= completed < request.step:
        raise bad_item(
            "completed_step",
            "OUT_OF_RANGE",
            f"is {completed}, must be {pool.blocks.completed_step} to {request.step - 1}",
        )
    if request.HasField("rates"):
        _validate_rates("rates", request.rates)
    if request.HasField("failed_step") and not pool.blocks.completed_step < request.failed_step < request.step:
        raise bad_item(
            "failed_step",
            "OUT_OF_RANGE",
            f"is {request.failed_step}, must be {pool.blocks.completed_step + 1} to {request.step - 1}",
        )


def _validate_rates(field: str, rates: common_pb2.Rates) -> None:
    for name in ("prefill_tokens_per_second", "copy_bytes_per_second"):
        value = getattr(rates, name)
        if not (math.isfinite(value) and value > 0):
            raise bad_item(f"{field}.{name}", "OUT_OF_RANGE", f"is {value}, must be positive and finite")


class _StepCheck:
    """Follows the request in the order in which it would be served, without serving it.

    Attributes:
        children: the sequences forked by the request, with their fork points.
        written: for sequences the request commits to or forks, the length it declares written.
        released: the ids released by the request.
        kin: for groups the request forks or admits into, what every member has: (priority, arrival, tenant).
    """

    def __init__(self, pool: "Pool", request: steps_pb2.StepRequest) -> None:
        self.pool = pool
        self.request = request
        self.children: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.released: set[int] = set()
        self.kin: dict[int, tuple[int, int, str]] = {}

    def commits(self) -> None:
        commits = self.request.commits
        seqs, starts, counts = commits.seqs[:], commits.starts[:], commits.counts[:]
        if not len(seqs) == len(starts) == len(counts):
            raise bad_item(
                "commits", "UNEQUAL_COLUMNS", f"{len(seqs)} seqs, {len(starts)} starts, {len(counts)} counts"
            )
        if len(commits.token_ids) != sum(counts) * TOKEN_BYTES:
            raise bad_item(
                "commits.token_ids",
                "MALFORMED_TOKENS",
                f"has {len(commits.token_ids)} bytes, the counts need {sum(counts) * TOKEN_BYTES}",
            )
        sequences, block_size, written = self.pool.sequences, self.pool.block_size, self.written
        for seq, start, count in zip(seqs, starts, counts, strict=True):
            sequence = sequences.get(seq)
            end = start + count
            if (
                sequence is None
                or start != sequence.known
                or count == 0
                or end > len(sequence.table) * block_size
                or sequence.unwritten
                or seq in written
            ):
                self._commit(f"commits[{len(written)}]", seq, start, count)
            written[seq] = end

    def _commit(self, field: str, seq: int, start: int, count: int) -> None:
        """A commit that is wrong, or one of the rare right ones: to a parked sequence, or below its fork."""
        sequence = self.pool.sequences.get(seq)
        if sequence is None:
            raise self._unknown(field, seq)
        if seq in self.written:
            raise bad_item(field, "DUPLICATE_SEQUENCE", f"sequence {seq} appears twice")
        if start != sequence.known:
            raise bad_item(
                f"{field}.start",
                "WRONG_COMMIT_START",
                f"is {start}, the committed length of sequence {seq} is {sequence.known}",
            )
        end = start + count
        capacity = (len(sequence.table) or len(sequence.parked_table)) * self.pool.block_size
        if count == 0 or end > capacity:
            raise bad_item(
                f"{field}.count",
                "OUT_OF_RANGE",
                f"is {count} from {start} on; the table of sequence {seq} holds {capacity} tokens",
            )
        if sequence.unwritten and end > sequence.fork_point:
            raise bad_item(
                field,
                "NOT_ADVANCED",
                f"sequence {seq} has not advanced since its fork at {sequence.fork_point}: it wrote nothing beyond",
            )

    def forks(self) -> None:
        pool, children = self.pool, self.children
        for row, fork in enumerate(self.request.forks):
            field = f"forks[{row}]"
            parent = pool.sequences.get(fork.parent)
            if parent is not None and not parent.running:
                raise self._not_running(f"{field}.parent", fork.parent)
            if parent is not None:
                capacity = len(parent.table) * pool.block_size
                self.kin[parent.group] = (parent.priority, parent.arrival, parent.root.tenant)
            elif fork.parent in children:
                capacity = -(-children[fork.parent] // pool.block_size) * pool.block_size
            else:
                raise self._unknown(f"{field}.parent", fork.parent)
            if not fork.children:
                raise bad_item(f"{field}.children", "EMPTY", "must name at least one child")
            if pool.window is not None and parent is not None and fork.num_tokens < parent.next_write():
                raise bad_item(
                    f"{field}.num_tokens",
                    "OUT_OF_RANGE",
                    f"is {fork.num_tokens}; what lies before {parent.next_write()} may have left the window",
                )
            if fork.num_tokens > capacity:
                raise bad_item(
                    f"{field}.num_tokens", "OUT_OF_RANGE", f"is {fork.num_tokens}, the parent holds {capacity} at most"
                )
            for seq in fork.children:
                validate_id(f"{field}.children", seq)
                if seq == 0 or seq in pool.sequences or seq in children:
                    raise bad_item(f"{field}.children", "SEQUENCE_EXISTS", f"sequence {seq} is live already or 0")
                children[seq] = fork.num_tokens
            self.written[fork.parent] = max(self._next_write(fork.parent), fork.num_tokens)

    def releases(self) -> None:
        pool, released = self.pool, self.released
        for row, release in enumerate(self.request.releases):
            seq = release.seq
            if seq in released:
                raise bad_item(f"releases[{row}]", "DUPLICATE_SEQUENCE", f"sequence {seq} appears twice")
            if seq not in pool.sequences and seq not in self.children and not 0 < seq <= pool.greatest_seq:
                raise self._unknown(f"releases[{row}]", seq)
            released.add(seq)

    def failure(self) -> None:
        """Nothing a failed step may have touched is carried over: every sequence is released, then admitted again."""
        if self.request.commits.seqs or self.children:
            raise bad_item("failed_step", "LIVE_AFTER_FAILURE", "commits and forks have no place beside a failed step")
        kept = self.pool.sequences.keys() - self.released
        if kept:
            raise bad_item(
                "failed_step", "LIVE_AFTER_FAILURE", f"sequence {min(kept)} is not released; release all, admit again"
            )

    def advances(self) -> None:
        advances = self.request.advances
        seqs, lengths = advances.seqs[:], advances.num_tokens[:]
        if len(seqs) != len(lengths) or (advances.rooms and len(advances.rooms) != len(seqs)):
            raise bad_item(
                "advances",
                "UNEQUAL_COLUMNS",
                f"{len(seqs)} seqs, {len(lengths)} num_tokens, {len(advances.rooms)} rooms",
            )
        if len(set(seqs)) != len(seqs):
            raise bad_item("advances.seqs", "DUPLICATE_SEQUENCE", "a sequence appears twice")
        sequences, released, written = self.pool.sequences, self.released, self.written
        for seq, length in zip(seqs, lengths, strict=True):
            sequence = sequences.get(seq)
            if (
                sequence is None
                or not sequence.table
                or length <= sequence.granted
                or length <= sequence.fork_point
                or length <= written.get(seq, 0)
                or seq in released
            ):
                self._advance(f"advances[{seqs.index(seq)}]", seq, length)

    def _advance(self, field: str, seq: int, length: int) -> None:
        """An advance that is wrong, or one of the rarer right ones: of a child of this request, or within its grant."""
        sequence = self.pool.sequences.get(seq)
        if (sequence is None and seq not in self.children) or seq in self.released:
            raise self._unknown(field, seq)
        if sequence is not None and not sequence.running:
            raise self._not_running(field, seq)
        next_write = self.children[seq] if sequence is None else sequence.next_write()
        if length <= next_write or length <= self.written.get(seq, 0):
            raise bad_item(
                f"{field}.num_tokens",
                "OUT_OF_RANGE",
                f"is {length}, sequence {seq} has written {self._next_write(seq)} tokens already",
            )

    def resumes(self) -> None:
        pool = self.pool
        seen: set[int] = set()
        for row, resume in enumerate(self.request.resumes):
            field, seq = f"resumes[{row}]", resume.seq
            if seq in seen:
                raise bad_item(field, "DUPLICATE_SEQUENCE", f"sequence {seq} appears twice")
            seen.add(seq)
            sequence = pool.sequences.get(seq)
            if sequence is None or seq in self.released:
                raise self._unknown(field, seq)
            if sequence.running:
                raise bad_item(field, "NOT_SWAPPED", f"sequence {seq} runs already")
            if resume.num_tokens < max(1, self._next_write(seq)):
                raise bad_item(
                    f"{field}.num_tokens",
                    "OUT_OF_RANGE",
                    f"is {resume.num_tokens}, sequence {seq} has written {self._next_write(seq)} tokens already",
                )

    def admits(self) -> None:
        pool = self.pool
        seen: set[int] = set()
        for row, admit in enumerate(self.request.admits):
            field, seq = f"admits[{row}]", admit.seq
            if seq in seen:
                raise bad_item(field, "DUPLICATE_SEQUENCE", f"sequence {seq} appears twice")
            seen.add(seq)
            validate_id(f"{field}.seq", seq)
            if seq == 0 or ((seq in pool.sequences or seq in self.children) and seq not in self.released):
                raise bad_item(field, "SEQUENCE_EXISTS", f"sequence {seq} is live already or 0")
            old = pool.adopted_up_to < seq <= pool.greatest_seq and seq not in pool.refused
            if old and not admit.again:
                raise bad_item(
                    field,
                    "STALE_SEQUENCE_ID",
                    f"sequence {seq} is not above {pool.greatest_seq}, the greatest id seen, and not marked again",
                )
            self._group(field, admit)
            validate_tokens(f"{field}.token_ids", admit.token_ids)
            if pool.window is not None:
                validate_prompt_blocks(pool, f"{field}.token_ids", admit.token_ids)
            if admit.num_tokens == 0:
                raise bad_item(f"{field}.num_tokens", "OUT_OF_RANGE", "must be at least 1")

    def _group(self, field: str, admit: steps_pb2.Admit) -> None:
        """A group ranks as one, runs or is parked as one, and takes blocks for one tenant: who joins must fit that."""
        group = admit.group if admit.HasField("group") else admit.seq
        own = (admit.priority, admit.arrival, admit.root.tenant)
        members = [member for member in self.pool.groups.get(group, ()) if member.id not in self.released]
        fits = all(
            member.running and (member.priority, member.arrival, member.root.tenant) == own for member in members
        )
        if not fits or self.kin.setdefault(group, own) != own:
            raise bad_item(
                f"{field}.group", "WRONG_GROUP", f"group {group} is parked, ranks elsewhere or is another tenant's"
            )

    def _not_running(self, field: str, seq: int) -> Exception:
        return bad_item(field, "NOT_RUNNING", f"sequence {seq} is parked in the host tier: resume it first")

    def _next_write(self, seq: int) -> int:
        """The next write position as it will be when advances are served."""
        sequence = self.pool.sequences.get(seq)
        base = self.children[seq] if sequence is None else sequence.next_write()
        return max(base, self.written.get(seq, 0))

    def _unknown(self, field: str, seq: int) -> Exception:
        return bad_item(field, "UNKNOWN_SEQUENCE", f"pool {self.pool.name!r} has no live sequence {seq}")


def validate_id(field: str, seq: int) -> None:
    """Refuse an id of a new sequence above which no new one could come.

    Raises:
        ServiceError: INVALID_ARGUMENT naming the field.
    """
    if seq > MAX_SEQUENCE_ID:
        raise bad_item(field, "OUT_OF_RANGE", f"is {seq}, must be at most {MAX_SEQUENCE_ID}")


def validate_tokens(field: str, token_ids: bytes) -> None:
    """Refuse token ids that are empty or no whole number of u32.

    Raises:
        ServiceError: INVALID_ARGUMENT naming the field.
    """
    if not token_ids:
        raise bad_item(field, "EMPTY", "must hold at least one token id")
    if len(token_ids) % TOKEN_BYTES:
        raise bad_item(field, "MALFORMED_TOKENS", f"has {len(token_ids)} bytes, token ids take {TOKEN_BYTES} each")
