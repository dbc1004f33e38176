"""A fake worker: it speaks the contract, follows its tables as a real worker does, and computes nothing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, kv_manager_pb2, kv_manager_pb2_grpc, lookup_pb2, steps_pb2

Stub = kv_manager_pb2_grpc.KvManagerServiceStub


def pack(ids: Iterable[int]) -> bytes:
    """Token ids as they travel: u32 little-endian."""
    return b"".join(token.to_bytes(4, "little") for token in ids)


def fresh(count: int, start: int) -> list[int]:
    """``count`` token ids from ``start`` on, so that prompts with far starts share nothing."""
    return list(range(start, start + count))


class FakeWorker:
    """A worker on one pool.

    Every step is reported complete in the next one unless a test says otherwise. ``tables`` follows grants and
    replacements by rule 5 alone, and checks ``first_index`` against what it has.
    """

    def __init__(self, stub: Stub, **spec: Any) -> None:
        self.stub = stub
        spec.setdefault("worker_id", "fake")
        spec.setdefault("block_size", 4)
        spec.setdefault("reuse_regime", common_pb2.REUSE_REGIME_ORDERED)
        live = spec.pop("live", ())
        self.spec = attach_pb2.PoolSpec(**spec)
        self.pool = self.spec.pool
        self.step_number = self.spec.step
        self.tables: dict[int, list[int]] = {}
        parts = [attach_pb2.AttachRequest(pool=self.spec)]
        parts += [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[one])) for one in live]
        self.answer = stub.Attach(iter(parts))
        self.epoch = self.answer.header.epoch
        self.attached = True

    # --- steps

    def request(
        self,
        *,
        commits: Mapping[int, tuple[int, Sequence[int]]] | None = None,
        forks: Sequence[tuple[int, Sequence[int], int]] = (),
        releases: Sequence[int] = (),
        advances: Mapping[int, int] | None = None,
        rooms: Sequence[int] = (),
        resumes: Mapping[int, int] | None = None,
        admits: Sequence[steps_pb2.Admit] = (),
        completed: int | None = None,
        **fields: Any,
    ) -> steps_pb2.StepRequest:
        """The next request: commits {seq: (start, ids)}, forks (parent, children, length), advances {seq: length}."""
        commits, advances, resumes = commits or {}, advances or {}, resumes or {}
        return steps_pb2.StepRequest(
            pool=self.pool,
            epoch=self.epoch,
            step=self.step_number + 1,
            completed_step=self.step_number if completed is None else completed,
            commits=steps_pb2.Commits(
                seqs=list(commits),
                starts=[start for start, _ in commits.values()],
                counts=[len(ids) for _, ids in commits.values()],
                token_ids=b"".join(pack(ids) for _, ids in commits.values()),
            ),
            forks=[steps_pb2.Fork(parent=one, children=many, num_tokens=length) for one, many, length in forks],
            releases=[steps_pb2.Release(seq=seq, reason=steps_pb2.RELEASE_REASON_FINISHED) for seq in releases],
            advances=steps_pb2.Advances(seqs=list(advances), num_tokens=list(advances.values()), rooms=rooms),
            resumes=[steps_pb2.Resume(seq=seq, num_tokens=length) for seq, length in resumes.items()],
            admits=admits,
            **fields,
        )

    def send(self, request: steps_pb2.StepRequest) -> steps_pb2.StepResponse:
        """Send a request and follow the answer."""
        response = self.stub.Step(request)
        if response.header.step == self.step_number + 1:
            self.step_number += 1
            self._follow(request, response)
        return response

    def step(self, **items: Any) -> steps_pb2.StepResponse:
        """Build, send and follow one step; arguments as for ``request``."""
        return self.send(self.request(**items))

    def admit(self, seq: int, ids: Sequence[int], **fields: Any) -> steps_pb2.StepResponse:
        """A step that admits one prompt, all of it in one chunk unless ``num_tokens`` says less."""
        return self.step(admits=[admit(seq, ids, **fields)])

    def _follow(self, request: steps_pb2.StepRequest, response: steps_pb2.StepResponse) -> None:
        tables = self.tables
        for fork in request.forks:
            for child in fork.children:
                tables[child] = tables[fork.parent][: -(-fork.num_tokens // self.spec.block_size)]
        for gone in (*request.releases, *response.preempted, *response.rejected):
            tables.pop(gone.seq, None)
        replaced = response.replaced
        for seq, index, block in zip(replaced.seqs, replaced.indexes, replaced.blocks, strict=True):
            if seq in tables:
                tables[seq][index] = block
        whole = {admit.seq for admit in request.admits} | {resume.seq for resume in request.resumes}
        for grant in response.grants:
            table = tables.setdefault(grant.seq, [])
            if grant.seq in whole:
                table.clear()
            assert grant.first_index == len(table), f"grant of {grant.seq} does not continue its table"
            table.extend(grant.blocks)

    # --- questions

    def matched(self, ids: Sequence[int], **root: str) -> int:
        """Cached tokens of a prompt as everyone outside the pool sees them."""
        request = lookup_pb2.MatchPrefixRequest(
            pools=[self.pool], token_ids=pack(ids), root=common_pb2.PrefixRoot(**root)
        )
        return self.stub.MatchPrefix(request).matches[0].cached_tokens

    def can_admit(self, ids: Sequence[int], **fields: Any) -> lookup_pb2.CanAdmitResponse:
        return self.stub.CanAdmit(lookup_pb2.CanAdmitRequest(pool=self.pool, token_ids=pack(ids), **fields))

    def blocks(self) -> dict[int, inspect_pb2.BlockInfo]:
        """Every block by id, the null block included."""
        request = inspect_pb2.InspectBlocksRequest(pool=self.pool, count=self.spec.num_blocks + 1)
        return {info.block: info for info in self.stub.InspectBlocks(request).blocks}

    def summary(self) -> inspect_pb2.PoolSummary:
        return self.stub.InspectPool(inspect_pb2.InspectPoolRequest(pool=self.pool)).summary

    def available(self) -> int:
        """Blocks that can be granted now."""
        stats = self.summary().stats
        return stats.free_blocks + stats.cached_blocks

    def hashed(self) -> set[int]:
        """The blocks that carry a digest."""
        return {info.block for info in self.blocks().values() if info.digest}

    def ref_counts(self, *blocks: int) -> list[int]:
        infos = self.blocks()
        return [infos[block].ref_count for block in blocks]

    def grant_order(self, seq: int) -> list[int]:
        """The order in which the free blocks are granted, seen by taking them all with one prompt nobody has sent.

        Nobody else may run, or the pool must have no watermark. The last token's block is left out of the prompt so
        that the prompt fits with room for one more token; an advance takes it.
        """
        count = self.available()
        ids = fresh(count * self.spec.block_size - 1, 1_000_000 * seq)
        response = self.admit(seq, ids)
        assert not response.waiting, "the whole free list fits"
        return list(self.tables[seq])

    def state_digest(self) -> bytes:
        return self._integrity().state_digest

    def violations(self) -> list[str]:
        return list(self._integrity().violations)

    def _integrity(self) -> inspect_pb2.CheckIntegrityResponse:
        return self.stub.CheckIntegrity(inspect_pb2.CheckIntegrityRequest(pool=self.pool))

    def reset(self) -> kv_manager_pb2.ResetPrefixCacheResponse:
        return self.stub.ResetPrefixCache(kv_manager_pb2.ResetPrefixCacheRequest(pool=self.pool))

    def detach(self) -> attach_pb2.DetachResponse:
        self.attached = False
        return self.stub.Detach(attach_pb2.DetachRequest(pool=self.pool, epoch=self.epoch))


def admit(seq: int, ids: Sequence[int], **fields: Any) -> steps_pb2.Admit:
    """An admit item; the whole prompt in one chunk unless ``num_tokens`` says less, arrival in order of ids."""
    fields.setdefault("num_tokens", len(ids))
    fields.setdefault("arrival", seq)
    return steps_pb2.Admit(seq=seq, token_ids=pack(ids), **fields)


def grants(response: steps_pb2.StepResponse) -> dict[int, steps_pb2.Grant]:
    """The grants of a response by sequence."""
    return {grant.seq: grant for grant in response.grants}


def copies(response: steps_pb2.StepResponse) -> list[tuple[int, int]]:
    """(source, destination) of every copy ordered."""
    return list(zip(response.copies.sources, response.copies.destinations, strict=True))


def waiting(response: steps_pb2.StepResponse) -> dict[int, str]:
    """Who waits, and the reason without its prefix."""
    name = steps_pb2.WaitingReason.Name
    return {item.seq: name(item.reason).removeprefix("WAITING_REASON_") for item in response.waiting}
