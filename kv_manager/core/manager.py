"""The manager: pools by name, and every call of the service as a method, message in, message out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kv_manager.core import can_admit, inspection, integrity, matching, views
from kv_manager.core.adoption import adopt
from kv_manager.core.attach_parts import AttachParts
from kv_manager.core.block_ids import BlockIds
from kv_manager.core.entries import Interest
from kv_manager.core.errors import (
    bad_item,
    cache_in_use,
    pool_in_use,
    pool_not_found,
    stale_epoch,
)
from kv_manager.core.journal import KINDS
from kv_manager.core.lease import Lease
from kv_manager.core.pool import Pool
from kv_manager.core.slices import Item, Sliced, at_once
from kv_manager.core.step_notes import settle
from kv_manager.core.watching import Watch
from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, kv_manager_pb2, lookup_pb2, steps_pb2, watch_pb2
from service.channels import MAX_MESSAGE_BYTES

VERSION = "0.1.0"
MAX_BATCH_MS = 10_000


@dataclass(slots=True, eq=False)
class Tenure:
    """A pool and the lease its worker holds on it."""

    pool: Pool
    lease: Lease


class Manager:
    """Any number of pools. Not thread-safe: one caller at a time, as on an event loop.

    Args:
        manager_id: the identity of this process in every header.
        first_epoch: the epoch of the first Attach. It must lie above every epoch an earlier manager gave, so that late
            messages of old attempts are told apart; the gRPC skin takes the wall clock.
        lease_ms: how long a pool outlives its worker's broken stream.
        max_blocks: the largest pool accepted; a pool costs 28 bytes a block from the start.
        watch_token_ids: tell watchers who ask for them the token ids of stored blocks, which are their users' text.

    Every method raises ``ServiceError`` for what it refuses, and then has changed nothing.
    """

    def __init__(
        self,
        *,
        manager_id: str = "in-process",
        first_epoch: int = 1,
        lease_ms: int = 10_000,
        max_blocks: int = 1 << 24,
        watch_token_ids: bool = False,
    ) -> None:
        self.manager_id = manager_id
        self.lease_ms = lease_ms
        self.max_blocks = max_blocks
        self.watch_token_ids = watch_token_ids
        self._next_epoch = first_epoch
        self._tenures: dict[str, Tenure] = {}

    # --- life of a pool

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        """Bring a pool, with the live tables its worker may have.

        One of the same name is dropped with all its digests; its epoch is over. But not while another worker process
        holds a stream on it and is heard: two workers with one pool name would end each other's streams in turn.

        A Drain is meant for the worker process: a pool that it takes over from itself goes on draining.
        """
        checked = self.attaching()
        for part in parts:
            checked.add(part)
        spec, snapshot = checked.read()
        holder = self._tenures.get(spec.pool)
        if holder is not None and holder.lease.alive and holder.pool.spec.worker_id != spec.worker_id:
            raise pool_in_use(spec.pool, holder.pool.spec.worker_id)
        pool = Pool.create(self.manager_id, spec, self._next_epoch)
        adoption = adopt(pool, snapshot)
        if holder is not None and holder.pool.spec.worker_id == spec.worker_id:
            pool.draining = holder.pool.draining
        self._next_epoch += 1
        if spec.pool in self._tenures:
            self._drop(spec.pool, "another Attach has taken its place")
        self._tenures[spec.pool] = Tenure(pool, Lease.fresh(self.lease_ms))
        return attach_pb2.AttachResponse(
            header=pool.header(),
            lease_ms=self.lease_ms,
            stats=views.stats(pool),
            adopted=adoption.adopted,
            recompute=adoption.recompute,
        )

    def attaching(self) -> AttachParts:
        """Checks the messages of an Attach as they come; ``attach`` takes it when the last one has."""
        return AttachParts(self.max_blocks)

    def detach(self, request: attach_pb2.DetachRequest) -> attach_pb2.DetachResponse:
        """Give a pool up at once."""
        pool = self._tenure(request.pool, request.epoch).pool
        self._drop(request.pool, "its worker gave it up")
        return attach_pb2.DetachResponse(header=pool.header(), dropped_sequences=len(pool.sequences))

    def lease(self, pool: str, epoch: int) -> Lease:
        """The lease of a pool, for whoever follows its stream."""
        return self._tenure(pool, epoch).lease

    def tick(self, elapsed_ms: int) -> list[tuple[str, int]]:
        """Let time pass for every lease and name the pools whose lease is over, with their epochs.

        Nothing is dropped: the caller first handles every message it can read, then calls ``expire``.
        """
        for tenure in self._tenures.values():
            tenure.lease.tick(elapsed_ms)
        return [(name, tenure.pool.epoch) for name, tenure in self._tenures.items() if tenure.lease.over]

    def expire(self, pool: str, epoch: int) -> bool:
        """Drop a pool whose lease is over. False if its worker was heard meanwhile."""
        tenure = self._tenures.get(pool)
        if tenure is None or tenure.pool.epoch != epoch or not tenure.lease.over:
            return False
        self._drop(pool, "its worker's stream is broken and its lease is over")
        return True

    # --- steps

    def step(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        """Serve one step; the same bytes again get the same answer without a second effect (rule 1).

        A pool that a fault of ours leaves half changed is dropped: its worker attaches again with its own tables, and
        what they say is whole.
        """
        tenure = self._tenure(request.pool, request.epoch)
        try:
            response = tenure.pool.apply(request)
        finally:
            if tenure.pool.torn:
                self._drop(request.pool, "a step failed half-way; attach again")
        tenure.lease.renew()
        return response

    def last_step(self, pool: str) -> int | None:
        """The last step a pool has answered, None for a pool that does not exist."""
        tenure = self._tenures.get(pool)
        return tenure.pool.step if tenure is not None else None

    # --- questions

    def match_prefix(self, request: lookup_pb2.MatchPrefixRequest) -> lookup_pb2.MatchPrefixResponse:
        """How much of a prompt each pool holds; only what completed steps have written."""
        return at_once(self.matching(request))[0]

    def matching(self, request: lookup_pb2.MatchPrefixRequest) -> Sliced[lookup_pb2.MatchPrefixResponse]:
        """As ``match_prefix``, in slices for ``run_slice``: pools go on between them, and a long answer tells of each
        block as it was when it was looked up."""
        names = sorted(set(request.pools) or self._tenures)
        return matching.match([self._pool(name) for name in names], request, self._header())

    def run_slice(self, work: Sliced[Item]) -> Item | None:
        """The next slice of work that this manager began. A method, so that who guards our calls guards slices too.

        Raises:
            StopIteration: the work is done.
        """
        return next(work)

    def can_admit(self, request: lookup_pb2.CanAdmitRequest) -> lookup_pb2.CanAdmitResponse:
        """Whether an admit would be served by the next step."""
        return can_admit.verdict(self._pool(request.pool), request)

    def get_capabilities(self) -> inspect_pb2.GetCapabilitiesResponse:
        """Which parts of the contract are served."""
        return inspect_pb2.GetCapabilitiesResponse(
            header=self._header(),
            version=VERSION,
            capabilities=inspection.CAPABILITIES,
            max_message_bytes=MAX_MESSAGE_BYTES,
            lease_ms=self.lease_ms,
        )

    # --- looking inside

    def list_pools(self) -> inspect_pb2.ListPoolsResponse:
        """All pools by name."""
        pools = [inspection.summary(each.pool, each.lease) for _, each in sorted(self._tenures.items())]
        return inspect_pb2.ListPoolsResponse(header=self._header(), pools=pools)

    def inspect_pool(self, request: inspect_pb2.InspectPoolRequest) -> inspect_pb2.InspectPoolResponse:
        """One pool with its sequences, best rank first. Watchers hear of all of it before any later step."""
        tenure = self._tenure(request.pool)
        if tenure.pool.journal is not None:
            settle(tenure.pool, tenure.pool.journal)
        return inspection.pool_with_sequences(tenure.pool, tenure.lease)

    def inspect_sequence(self, request: inspect_pb2.InspectSequenceRequest) -> inspect_pb2.InspectSequenceResponse:
        """One sequence's logical -> physical table."""
        return at_once(self.inspecting_sequence(request))[0]

    def inspecting_sequence(
        self, request: inspect_pb2.InspectSequenceRequest
    ) -> Sliced[inspect_pb2.InspectSequenceResponse]:
        """As ``inspect_sequence``, in slices for ``run_slice``: the table as it is now, its blocks as they then are."""
        return inspection.sequence(self._pool(request.pool), request.seq)

    def inspect_blocks(self, request: inspect_pb2.InspectBlocksRequest) -> inspect_pb2.InspectBlocksResponse:
        """A range of blocks; the answer ends with the pool."""
        return at_once(self.inspecting_blocks(request))[0]

    def inspecting_blocks(self, request: inspect_pb2.InspectBlocksRequest) -> Sliced[inspect_pb2.InspectBlocksResponse]:
        """As ``inspect_blocks``, in slices for ``run_slice``: each block as it is when its slice comes."""
        return inspection.blocks(self._pool(request.pool), request)

    def check_integrity(self, request: inspect_pb2.CheckIntegrityRequest) -> inspect_pb2.CheckIntegrityResponse:
        """Every invariant from scratch; takes time in proportion to the blocks that were ever used."""
        pool = self._pool(request.pool)
        return inspect_pb2.CheckIntegrityResponse(
            header=pool.header(),
            violations=integrity.violations(pool),
            state_digest=integrity.state_digest(pool),
        )

    def watch(self, request: watch_pb2.WatchRequest, notify: Callable[[], None]) -> Watch:
        """Watch a pool's events; the caller polls when notified, and closes."""
        pool = self._pool(request.pool)
        kinds = frozenset(request.kinds) or frozenset((watch_pb2.EVENT_KIND_CACHE,))
        if not kinds <= frozenset(KINDS):
            raise bad_item("kinds", "UNSPECIFIED", f"must be cache, blocks, tables or sequences, not {sorted(kinds)}")
        if request.batch_ms > MAX_BATCH_MS:
            raise bad_item("batch_ms", "OUT_OF_RANGE", f"is {request.batch_ms}, must be at most {MAX_BATCH_MS}")
        known = (
            request.HasField("after")
            and request.after.manager_id == self.manager_id
            and request.after.epoch == pool.epoch
            and frozenset(request.after.kinds) == kinds  # another choice of kinds is numbered otherwise
        )
        journal = pool.watch()
        if self.watch_token_ids and journal.ids is None:
            journal.ids = BlockIds(pool)
        interest = Interest(kinds, request.include_token_ids, request.batch_ms > 0)
        return Watch(pool, interest, request.after.sequence if known else None, notify)

    # --- operators

    def reset_prefix_cache(
        self, request: kv_manager_pb2.ResetPrefixCacheRequest
    ) -> kv_manager_pb2.ResetPrefixCacheResponse:
        """Forget every digest of a pool that nobody uses."""
        pool = self._pool(request.pool)
        if pool.sequences or pool.blocks.fenced_blocks:
            raise cache_in_use(len(pool.sequences))
        cleared = pool.blocks.clear_digests()
        if pool.journal is not None:
            pool.journal.note(pool.step)
        return kv_manager_pb2.ResetPrefixCacheResponse(header=pool.header(), cleared_blocks=cleared)

    def drain(self, request: kv_manager_pb2.DrainRequest) -> kv_manager_pb2.DrainResponse:
        """Admit nobody new any more; what runs goes on to its end."""
        pool = self._pool(request.pool)
        pool.draining = True
        return kv_manager_pb2.DrainResponse(header=pool.header(), live_sequences=len(pool.sequences))

    # --- helpers

    def pools(self) -> list[Pool]:
        """All pools by name, for metrics."""
        return [tenure.pool for _, tenure in sorted(self._tenures.items())]

    def _tenure(self, name: str, epoch: int | None = None) -> Tenure:
        tenure = self._tenures.get(name)
        if tenure is None:
            raise pool_not_found(name)
        if epoch is not None and epoch != tenure.pool.epoch:
            raise stale_epoch(name, epoch, tenure.pool.epoch)
        return tenure

    def _drop(self, name: str, reason: str) -> None:
        pool = self._tenures.pop(name).pool
        if pool.journal is not None:
            settle(pool, pool.journal)
            pool.journal.drop(reason)

    def _pool(self, name: str) -> Pool:
        return self._tenure(name).pool

    def _header(self) -> common_pb2.ResponseHeader:
        return common_pb2.ResponseHeader(manager_id=self.manager_id)
