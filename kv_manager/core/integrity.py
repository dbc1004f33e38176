"""The invariants of a pool (design 7), checked from scratch, and a digest of its whole state."""

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING

from kv_manager.core.block_pool import BlockPool

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


def violations(pool: "Pool") -> list[str]:
    """What is wrong, one line each; empty when everything adds up.

    Takes time in proportion to the blocks that were ever used: the others lie in ranges, and no list or table may name
    them.
    """
    blocks = pool.blocks
    return [
        *_check_states(blocks),
        *_check_references(pool),
        *_check_index(blocks),
        *_check_chains(pool),
        *_check_host(pool),
        *_check_quotas(pool),
    ]


def _check_states(blocks: BlockPool) -> list[str]:
    """I1: every block is in exactly one state, and the counts agree; I5: what is grantable has passed its fence."""
    found: list[str] = []
    returned, cached = blocks.listed()
    grantable, fenced, used = [*returned, *cached], list(blocks.fenced()), list(blocks.used())
    referenced = [block for block in used if blocks.ref_count[block] > 0]
    places = Counter([*grantable, *fenced, *referenced])
    for block in used:
        if places[block] != 1:
            found.append(f"I1: block {block} is in {places[block]} states")
        if blocks.ref_count[block] < 0:
            found.append(f"I2: block {block} has reference count {blocks.ref_count[block]}")
    if places.keys() - set(used):
        found.append("I1: a list holds a block that nobody was granted")
    found += [f"I1: block {block} lies among those without a digest" for block in returned if blocks.digest[block]]
    found += [f"I1: block {block} lies among the cached ones" for block in cached if blocks.digest[block] is None]
    unused = sum(map(len, blocks.unused()))
    counts = (
        ("all", blocks.num_blocks, len(used) + unused),
        ("free", blocks.free_blocks, len(returned) + unused),
        ("cached", blocks.cached_blocks, len(cached)),
        ("fenced", blocks.fenced_blocks, len(fenced)),
        ("referenced", blocks.referenced_blocks, len(referenced)),
    )
    found += [f"I1: {name} blocks counted {told}, found {real}" for name, told, real in counts if told != real]
    found += [
        f"I5: block {block} is grantable before step {blocks.fence[block]} has completed"
        for block in grantable
        if blocks.fence[block] > blocks.completed_step
    ]
    return found


def _check_references(pool: "Pool") -> list[str]:
    """I2: a reference count is the number of table entries that name the block."""
    named = Counter(block for sequence in pool.sequences.values() for block in sequence.table)
    del named[0]
    ref_count, used = pool.blocks.ref_count, list(pool.blocks.used())
    found = [
        f"I2: block {block} has reference count {ref_count[block]}, tables name it {named[block]} times"
        for block in used
        if ref_count[block] != named[block]
    ]
    found += [f"I2: a table names block {block}, which was never granted" for block in named.keys() - set(used)]
    if ref_count[0] or pool.blocks.digest[0] is not None:
        found.append("I2: the null block is referenced or hashed")
    return found


def _check_index(blocks: BlockPool) -> list[str]:
    """The index names exactly the blocks that hold a digest."""
    found: list[str] = []
    holding = {block: digest for block in blocks.used() if (digest := blocks.digest[block]) is not None}
    indexed = {block: digest for digest in blocks.index.digests() for block in blocks.index.holders(digest)}
    if holding != indexed:
        wrong = sorted(holding.items() ^ indexed.items())
        found.append(f"I3: the index and the blocks disagree about {len(wrong)} entries, first block {wrong[0][0]}")
    strangers = set(blocks.unconfirmed) - set(holding)
    if strangers:
        found.append(f"I3: unconfirmed blocks without a digest: {sorted(strangers)}")
    return found


def _check_chains(pool: "Pool") -> list[str]:
    """I3, I6 as far as ids are known: a table's digests are its ids' own, and indexed blocks have indexed parents.

    Only what a sequence has written counts: a block it shares beyond its fork point may have been filled by others.
    """
    found: list[str] = []
    blocks, block_size = pool.blocks, pool.block_size
    for sequence in pool.sequences.values():
        full = min(sequence.known, sequence.granted) // block_size
        digests = sequence.chain_to(full, block_size)
        for index, block in enumerate(sequence.table[:full]):
            digest = blocks.digest[block]
            if digest is None:
                continue
            if digest != digests[index]:
                found.append(f"I3: block {block} of sequence {sequence.id} holds a digest that is not its tokens'")
            elif index and pool.window is None and not blocks.index.first(digests[index - 1]):
                found.append(f"I6: block {block} of sequence {sequence.id} is indexed, its parent is not")
    return found


def _check_host(pool: "Pool") -> list[str]:
    """I1 and I2 of the host tier, and that a group runs or is parked as a whole."""
    found: list[str] = []
    tier = pool.host
    named = Counter(block for sequence in pool.sequences.values() for block in sequence.parked_blocks())
    if named != Counter(tier.references()):
        found.append("I2: reference counts of host blocks differ from what host tables name")
    places = Counter([*tier.grantable(), *tier.fenced(), *named.keys()])
    if places != Counter(range(tier.num_blocks)):
        found.append("I1: a host block is lost or in two places")
    parked = {sequence.group for sequence in pool.sequences.values() if not sequence.running}
    if parked != set(tier.parked):
        found.append(f"I1: parked groups {sorted(parked)}, the tier names {sorted(tier.parked)}")
    members = sum(len(group) for group in pool.groups.values())
    if members != len(pool.sequences):
        found.append(f"I1: {len(pool.sequences)} sequences, {members} in groups")
    return found


def _check_quotas(pool: "Pool") -> list[str]:
    """I9: no tenant uses more than its hard limit, and its use is what its tables name."""
    found: list[str] = []
    for tenant, quota in pool.quotas.items():
        named = Counter(block for each in pool.running() if each.root.tenant == tenant for block in each.table if block)
        if named != Counter(quota.entries):
            found.append(f"I9: tenant {tenant!r} is said to use {quota.used} blocks, its tables name {len(named)}")
        if quota.used > quota.hard:
            found.append(f"I9: tenant {tenant!r} uses {quota.used} of {quota.hard} blocks")
    return found


def state_digest(pool: "Pool") -> bytes:
    """A SHA-256 over the whole state; equal states have equal digests."""
    blocks = pool.blocks
    state = sha256()

    def add(*values: object) -> None:
        state.update(repr(values).encode())

    add(pool.spec.SerializeToString(deterministic=True), pool.epoch, pool.step, blocks.completed_step)
    add(pool.greatest_seq, sorted(pool.refused), pool.draining)
    add(blocks.unused(), blocks.listed())
    add(list(blocks.fenced()))
    for block in blocks.used():
        fence = blocks.fence[block] if blocks.fence[block] > blocks.completed_step else 0
        add(block, blocks.ref_count[block], fence, blocks.digest[block])
    add(sorted(blocks.unconfirmed.items()), sorted(blocks.swap_sources.items()), pool.host.state())
    add(pool.rates.SerializeToString(deterministic=True) if pool.rates else None)
    add([blocks.index.holders(digest) for digest in sorted(blocks.index.digests())])
    for sequence in sorted(pool.sequences.values(), key=lambda each: each.id):
        add(sequence.id, sequence.rank, sequence.root, sequence.known, sequence.granted, sequence.fork_point)
        add(sequence.indexed, sequence.hit_blocks, sequence.table, bytes(sequence.ids))
        add(sequence.host_table, sequence.readmitted_to, sequence.null_blocks, sequence.unwritten)
    return state.digest()
