"""Confusions: requests wrong in a way that takes knowledge of the contract, which bending fields seldom finds."""

import random
from collections.abc import Callable

from kv_traffic import NextStep, pack, pool_spec, written_ids

from octavo.kv.v1 import attach_pb2


def commit_twice(dice: random.Random, planned: NextStep) -> None:
    """The same sequence in two rows, the columns in order."""
    for each in planned.running[:1]:
        commits = planned.request.commits
        for _ in range(2):
            commits.seqs.append(each.seq)
            commits.starts.append(each.committed_tokens)
            commits.counts.append(1)
            commits.token_ids += written_ids(each.group, each.committed_tokens, 1)


def commit_beyond_the_table(dice: random.Random, planned: NextStep) -> None:
    for each in planned.running[:1]:
        commits = planned.request.commits
        commits.Clear()
        count = max(0, each.num_blocks * planned.block_size - each.committed_tokens) + 1
        commits.seqs.append(each.seq)
        commits.starts.append(each.committed_tokens)
        commits.counts.append(count)
        commits.token_ids = written_ids(each.group, each.committed_tokens, count)


def release_twice(dice: random.Random, planned: NextStep) -> None:
    for each in (planned.running + planned.parked)[:1]:
        planned.request.releases.add(seq=each.seq)
        planned.request.releases.add(seq=each.seq)


def advance_twice(dice: random.Random, planned: NextStep) -> None:
    advances = planned.request.advances
    for column in (advances.seqs, advances.num_tokens, advances.rooms):
        column.extend(list(column[:1]))


def run_the_parked(dice: random.Random, planned: NextStep) -> None:
    for each in planned.parked[:1]:
        advances = planned.request.advances
        if dice.random() < 0.5:
            planned.request.forks.add(parent=each.seq, children=[planned.heard + 1], num_tokens=1)
        else:
            advances.seqs.append(each.seq)
            advances.num_tokens.append(1_000)
            advances.rooms.append(0)


def resume_the_running(dice: random.Random, planned: NextStep) -> None:
    for each in planned.running[:1]:
        planned.request.resumes.add(seq=each.seq, num_tokens=each.granted_tokens)


def resume_twice(dice: random.Random, planned: NextStep) -> None:
    for resume in planned.request.resumes[:1]:
        planned.request.resumes.append(resume)


def fork_a_child(dice: random.Random, planned: NextStep) -> None:
    """No confusion: a grandchild made in the request that makes its parent."""
    for fork in planned.request.forks[:1]:
        planned.heard += 1
        planned.request.forks.add(parent=fork.children[0], children=[planned.heard], num_tokens=fork.num_tokens)


def join_a_group(dice: random.Random, planned: NextStep) -> None:
    """With the group's rank it may join, with another it may not."""
    for each in (planned.running + planned.parked)[:1]:
        for admit in planned.request.admits[:1]:
            admit.group = each.group
            admit.priority = each.priority
            admit.arrival = each.arrival + dice.choice((0, 1))


def fail_and_commit(dice: random.Random, planned: NextStep) -> None:
    """Everybody is released after a failed step, and yet somebody's tokens are committed."""
    request = planned.request
    commits = request.commits.__class__()
    commits.CopyFrom(request.commits)
    pool, epoch, step = request.pool, request.epoch, request.step
    request.Clear()
    request.pool, request.epoch, request.step, request.failed_step = pool, epoch, step, step - 1
    request.completed_step = max(0, step - 2)
    request.commits.CopyFrom(commits)
    for each in planned.running + planned.parked:
        request.releases.add(seq=each.seq)


def fork_behind_the_window(dice: random.Random, planned: NextStep) -> None:
    """Where the pool has a window; elsewhere a fork of nothing is right."""
    for each in planned.running[:1]:
        planned.heard += 1
        planned.request.forks.add(parent=each.seq, children=[planned.heard], num_tokens=0)


CONFUSIONS: tuple[Callable[[random.Random, NextStep], None], ...] = (
    commit_twice,
    commit_beyond_the_table,
    release_twice,
    advance_twice,
    run_the_parked,
    resume_the_running,
    resume_twice,
    fork_a_child,
    join_a_group,
    fail_and_commit,
    fork_behind_the_window,
)


# --- snapshots

Spec, Live = attach_pb2.PoolSpec, attach_pb2.LiveSequence


def two_tables(spec: Spec, live: Live, other: Live) -> None:
    """Running and parked at once."""
    live.host_table[:] = [0] * len(live.table)


def computed_beyond_the_ids(spec: Spec, live: Live, other: Live) -> None:
    live.computed_tokens = len(live.token_ids) // 4 + 1


def granted_less_than_computed(spec: Spec, live: Live, other: Live) -> None:
    live.granted_tokens = live.computed_tokens - 1


def no_host_block(spec: Spec, live: Live, other: Live) -> None:
    del live.table[:]
    live.host_table[:] = [spec.host_blocks]


def ranks_apart(spec: Spec, live: Live, other: Live) -> None:
    """A group of two arrivals."""
    live.group = other.group = 77
    other.arrival = live.arrival + 1


def two_places(spec: Spec, live: Live, other: Live) -> None:
    """One block as the first and the second of a table."""
    live.table[:] = [1, 1]


def two_prefixes(spec: Spec, live: Live, other: Live) -> None:
    """One block, two contents, both said to be computed."""
    for token, each in enumerate((live, other)):
        each.token_ids = pack([token] * spec.block_size)
        each.computed_tokens = spec.block_size
        del each.host_table[:]
        each.table[:] = [1]


def the_same_tenant(spec: Spec, live: Live, other: Live) -> None:
    for _ in range(2):
        spec.tenant_limits.add(tenant="twice", soft_blocks=1, hard_blocks=1)


def no_limit(spec: Spec, live: Live, other: Live) -> None:
    spec.tenant_limits.add(tenant="none", soft_blocks=2, hard_blocks=1)


def too_many_host_blocks(spec: Spec, live: Live, other: Live) -> None:
    spec.host_blocks = 2**31


def unpriced_swaps(spec: Spec, live: Live, other: Live) -> None:
    spec.host_blocks, spec.block_bytes = 4, 0


def a_long_tenant(spec: Spec, live: Live, other: Live) -> None:
    spec.tenant_limits.add(tenant="t" * 257, soft_blocks=1, hard_blocks=1)


SNAPSHOT_CONFUSIONS: tuple[Callable[[Spec, Live, Live], None], ...] = (
    two_tables,
    computed_beyond_the_ids,
    granted_less_than_computed,
    no_host_block,
    ranks_apart,
    two_places,
    two_prefixes,
    the_same_tenant,
    no_limit,
    too_many_host_blocks,
    unpriced_swaps,
    a_long_tenant,
)


def confused_attach(dice: random.Random, name: str) -> list[attach_pb2.AttachRequest]:
    """An Attach with two live sequences, wrong in one way."""
    spec = pool_spec(dice, name)
    size = spec.block_size
    ids = pack([9] * size)
    live, other = (
        Live(seq=seq, token_ids=ids, computed_tokens=size, granted_tokens=size, table=[seq], arrival=seq)
        for seq in (1, 2)
    )
    dice.choice(SNAPSHOT_CONFUSIONS)(spec, live, other)
    sequences = attach_pb2.LiveSequences(sequences=[live, other])
    return [attach_pb2.AttachRequest(pool=spec), attach_pb2.AttachRequest(sequences=sequences)]
