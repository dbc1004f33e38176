"""Requests that could be sent next, made from what the manager shows of itself: what the fuzzer bends.

They lean to the busy side: small pools, few distinct tokens, forks, parked sequences, late completions.
"""

import random

from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, kv_manager_pb2, lookup_pb2, steps_pb2, watch_pb2

TENANTS = ("", "a", "b")
NO_HOST_ENTRY = 2**32 - 1


def pack(ids: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in ids)


def tokens(dice: random.Random, count: int) -> bytes:
    """Few distinct ids, so that prompts share prefixes."""
    return pack([dice.randrange(2) if position % 3 else 0 for position in range(count)])


def written_ids(group: int, start: int, count: int) -> bytes:
    """What a group generates from position ``start`` on: the same for all members, since they may share the slots."""
    return pack([(group * 7 + position) % 3 for position in range(start, start + count)])


def pool_spec(dice: random.Random, name: str) -> attach_pb2.PoolSpec:
    """A small pool of any kind."""
    blocks = dice.choice((6, 12, 24))
    spec = attach_pb2.PoolSpec(
        pool=name,
        worker_id="fuzz",
        num_blocks=blocks,
        block_size=dice.choice((1, 2, 4)),
        block_bytes=1_000,
        host_blocks=dice.choice((0, 4, 16)),
        model_fingerprint="fuzz",
        watermark_blocks=dice.choice((0, 1, 2)),
        reuse_regime=dice.choice((common_pb2.REUSE_REGIME_ORDERED, common_pb2.REUSE_REGIME_FENCED)),
        swaps_on_own_stream=dice.random() < 0.5,
        window=dice.choice((None, None, 5)),
        step=dice.choice((0, 0, 7)),
    )
    if dice.random() < 0.5:
        spec.rates.prefill_tokens_per_second, spec.rates.copy_bytes_per_second = 100.0, dice.choice((1e3, 1e6))
    if dice.random() < 0.4:
        spec.tenant_limits.add(tenant="a", soft_blocks=2, hard_blocks=blocks // 2)
    return spec


def snapshot(dice: random.Random, spec: attach_pb2.PoolSpec) -> list[attach_pb2.LiveSequence]:
    """Live sequences that fit the pool: plain ones, a group that shares a prefix, parked ones, recompute victims."""
    free, parked = list(range(1, spec.num_blocks + 1)), list(range(spec.host_blocks))
    dice.shuffle(free)
    found: list[attach_pb2.LiveSequence] = []
    for seq in range(1, dice.randrange(1, 5)):
        length = dice.randrange(1, 4 * spec.block_size + 1)
        blocks = -(-length // spec.block_size)
        live = attach_pb2.LiveSequence(seq=seq, token_ids=tokens(dice, length), granted_tokens=length, arrival=seq)
        live.root.tenant = dice.choice(TENANTS)
        kind = dice.choice(("running", "running", "shared", "parked", "victim"))
        source = parked if kind == "parked" else free
        if kind == "victim" or blocks > len(source):
            found.append(live)
            continue
        live.computed_tokens = dice.randrange(length + 1)
        column = live.host_table if kind == "parked" else live.table
        column.extend(source.pop() for _ in range(blocks))
        if spec.HasField("window") and blocks > 2 and dice.random() < 0.5:
            column[0] = NO_HOST_ENTRY if kind == "parked" else 0
        found.append(live)
        if kind == "shared":
            twin = found[-1].__class__()
            twin.CopyFrom(live)
            live.group = twin.group = seq
            live.fork_tokens = twin.fork_tokens = live.computed_tokens
            twin.seq = seq + 10
            found.append(twin)
    return found


def attach_parts(dice: random.Random, name: str) -> list[attach_pb2.AttachRequest]:
    """An Attach, one in two with live tables in one or two chunks."""
    spec = pool_spec(dice, name)
    parts = [attach_pb2.AttachRequest(pool=spec)]
    if dice.random() < 0.5:
        rows = snapshot(dice, spec)
        cut = dice.randrange(len(rows) + 1)
        for chunk in (rows[:cut], rows[cut:]):
            parts.append(attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=chunk)))
    return parts


class NextStep:
    """The next step of one pool, as ``InspectPool`` shows it.

    Args:
        heard: the greatest sequence id used so far.
    """

    def __init__(self, dice: random.Random, pool: inspect_pb2.InspectPoolResponse, heard: int) -> None:
        self.dice = dice
        self.heard = max([heard, *(each.seq for each in pool.sequences if each.seq < 2**62)])
        summary = pool.summary
        self.block_size = summary.spec.block_size
        step = min(summary.header.step + 1, 2**64 - 1)
        completed = dice.choice((summary.completed_step, max(summary.completed_step, step - 1), step - 1))
        self.request = steps_pb2.StepRequest(
            pool=summary.header.pool, epoch=summary.header.epoch, step=step, completed_step=completed
        )
        self.running = [each for each in pool.sequences if each.state == inspect_pb2.SEQUENCE_STATE_RUNNING]
        self.parked = [each for each in pool.sequences if each.state == inspect_pb2.SEQUENCE_STATE_SWAPPED]
        if pool.sequences and step - 1 > summary.completed_step and dice.random() < 0.04:
            self._fail([each.seq for each in pool.sequences], step)
        else:
            self._live()

    def _fail(self, live: list[int], step: int) -> None:
        self.request.completed_step = max(0, step - 2)
        self.request.failed_step = step - 1
        for seq in live:
            self.request.releases.add(seq=seq, reason=steps_pb2.RELEASE_REASON_FAILED)

    def _live(self) -> None:
        dice, request = self.dice, self.request
        lengths: dict[int, int] = {}
        for each in self.running + self.parked:
            room = each.num_blocks * self.block_size - each.committed_tokens
            if room > 0 and dice.random() < 0.3:
                count = dice.randrange(1, min(room, 5) + 1)
                request.commits.seqs.append(each.seq)
                request.commits.starts.append(each.committed_tokens)
                request.commits.counts.append(count)
                request.commits.token_ids += written_ids(each.group, each.committed_tokens, count)
                lengths[each.seq] = each.committed_tokens + count
        for each in self.running:
            self._run(each, lengths)
        for each in self.parked:
            if dice.random() < 0.4:
                request.resumes.add(seq=each.seq, num_tokens=each.num_blocks * self.block_size)
        for _ in range(dice.choice((0, 1, 1, 2))):
            self._admit()
        if dice.random() < 0.05:
            request.rates.prefill_tokens_per_second, request.rates.copy_bytes_per_second = 50.0, 5e4

    def _run(self, each: inspect_pb2.SequenceSummary, lengths: dict[int, int]) -> None:
        dice, request = self.dice, self.request
        length = max(each.granted_tokens, each.committed_tokens, lengths.get(each.seq, 0))
        lot = dice.random()
        if lot < 0.1:
            request.releases.add(seq=each.seq)
        elif lot < 0.2 and each.num_blocks:
            self.heard += 1
            point = min(length, each.num_blocks * self.block_size)
            request.forks.add(parent=each.seq, children=[self.heard], num_tokens=point)
            length = max(length, point)
        if lot >= 0.1 and dice.random() < 0.6:
            request.advances.seqs.append(each.seq)
            request.advances.num_tokens.append(length + dice.randrange(1, 4))
            request.advances.rooms.append(dice.choice((0, length + 8)))

    def _admit(self) -> None:
        dice = self.dice
        self.heard += 1
        length = dice.randrange(1, 6 * self.block_size + 1)
        self.request.admits.add(
            seq=self.heard,
            token_ids=tokens(dice, length),
            num_tokens=dice.randrange(1, length + 1),
            priority=dice.choice((0, 0, 1)),
            arrival=self.heard,
            root=common_pb2.PrefixRoot(tenant=dice.choice(TENANTS)),
            again=dice.random() < 0.1,
        )


def question(dice: random.Random, name: str, epoch: int):
    """Any other call: its name and a message that is right for it."""
    prompt = tokens(dice, dice.randrange(1, 20))
    return dice.choice(
        (
            ("MatchPrefix", lookup_pb2.MatchPrefixRequest(pools=[name], token_ids=prompt, include_digests=True)),
            ("CanAdmit", lookup_pb2.CanAdmitRequest(pool=name, token_ids=prompt, beside_blocks=1)),
            ("InspectPool", inspect_pb2.InspectPoolRequest(pool=name)),
            ("InspectSequence", inspect_pb2.InspectSequenceRequest(pool=name, seq=1)),
            ("InspectBlocks", inspect_pb2.InspectBlocksRequest(pool=name, first_block=0, count=50)),
            ("CheckIntegrity", inspect_pb2.CheckIntegrityRequest(pool=name)),
            ("ListPools", inspect_pb2.ListPoolsRequest()),
            ("GetCapabilities", inspect_pb2.GetCapabilitiesRequest()),
            ("ResetPrefixCache", kv_manager_pb2.ResetPrefixCacheRequest(pool=name)),
            ("Drain", kv_manager_pb2.DrainRequest(pool="other")),
            ("Detach", attach_pb2.DetachRequest(pool=name, epoch=epoch + dice.choice((-1, 1)))),
            ("Watch", watch_pb2.WatchRequest(pool=name, kinds=[watch_pb2.EVENT_KIND_CACHE])),
        )
    )
