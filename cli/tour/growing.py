"""Scenes with room for everybody: allocate, append, fork, copy on write, share."""

from cli.amounts import counted
from cli.tour.pool import BLOCK_SIZE, FAST_COPY, PREFILL, TourPool
from cli.tour.scene import Scene, grant_of, listed
from octavo.kv.v1 import common_pb2, steps_pb2


def empty(pool: TourPool) -> Scene:
    """A worker attaches a pool."""
    rates = common_pb2.Rates(prefill_tokens_per_second=PREFILL, copy_bytes_per_second=FAST_COPY)
    stats = pool.attach(rates).stats
    return Scene(
        "An empty pool",
        "2",
        [
            f"A worker attaches a pool of {counted(stats.num_blocks, 'block')}, each with room for {BLOCK_SIZE} "
            "tokens; here a token is a word.",
            f"{stats.free_blocks} are free. Block 0, the null block, is never granted. Beside them lie "
            f"{counted(stats.host_blocks, 'block')} of host memory.",
        ],
    )


def allocate(pool: TourPool) -> Scene:
    """A prompt comes and gets the blocks it fills."""
    request = steps_pb2.StepRequest()
    pool.admit(request, "A")
    grant = grant_of(pool, pool.ask(request), "A")
    slots = len(grant.blocks) * BLOCK_SIZE
    return Scene(
        "Allocate",
        "3.1",
        [
            f"A comes with a prompt of {grant.granted_tokens} tokens: ceil({grant.granted_tokens} / {BLOCK_SIZE}) = "
            f"{counted(len(grant.blocks), 'block')}, granted: {listed(grant.blocks)}.",
            f"{slots - grant.granted_tokens} of {slots} slots are empty, and that is all the waste there is: nothing "
            "is reserved for the answer.",
        ],
    )


def append(pool: TourPool) -> Scene:
    """A sequence outgrows its last block."""
    request, before = steps_pb2.StepRequest(), len(pool.table("A")) * BLOCK_SIZE
    pool.advance(request, "A", before + 1)
    (count,) = request.commits.counts
    grant = grant_of(pool, pool.ask(request), "A")
    return Scene(
        "Append over a block edge",
        "3.5",
        [
            f"A generates. {counted(count, 'token')} went into the slots it had; the manager was not asked (rule 8).",
            f"Token {grant.granted_tokens} lies over the edge: A asks, and gets block {listed(grant.blocks)} as "
            f"logical block {grant.first_index}. Its table only grows (rule 5); where blocks lie does not matter.",
            f"Block {pool.table('A')[grant.first_index - 1]} is full now, so it has a digest, and others may find it.",
        ],
    )


def fork(pool: TourPool) -> Scene:
    """A child shares all that its parent has written."""
    request = steps_pb2.StepRequest()
    pool.fork(request, "A", "B")
    free = pool.look().summary.stats.free_blocks
    stats = pool.ask(request).stats
    shared = [entry.block for entry in pool.sequence("B").table if entry.ref_count > 1]
    return Scene(
        "Fork",
        "3.3",
        [
            f"A second answer is wanted: B is forked from A at {pool.speakers['B'].written} tokens.",
            f"B's table names the same blocks, {listed(shared)}; their reference counts are "
            f"{listed(entry.ref_count for entry in pool.sequence('B').table)} now. Free blocks: {free} before, "
            f"{stats.free_blocks} after. Nothing was copied.",
        ],
    )


def copy_on_write(pool: TourPool) -> Scene:
    """Two write the block they share."""
    request, before = steps_pb2.StepRequest(), pool.table("A")
    for letter in ("A", "B"):
        pool.advance(request, letter, pool.speakers[letter].written + 1)
    response = pool.ask(request)
    (source,), (target,) = response.copies.sources, response.copies.destinations
    writer = pool.letter(response.replaced.seqs[0])
    other = "B" if writer == "A" else "A"
    kept = [block for block in before if block in pool.table(writer)]
    return Scene(
        "Copy on write",
        "3.3",
        [
            f"Both go on, each with a word of its own, in the half-full block {source} that they share.",
            f"{writer} is served first and gets a copy: block {source} -> {target}. {other} is then its last owner and "
            "writes in place.",
            f"Full blocks are never copied: {listed(kept)} stay shared.",
        ],
    )


def share(pool: TourPool) -> Scene:
    """A prompt begins as another one did."""
    request = steps_pb2.StepRequest()
    pool.admit(request, "C")
    grant = grant_of(pool, pool.ask(request), "C")
    counts = [entry.ref_count for entry in pool.sequence("C").table][: grant.hit_blocks]
    return Scene(
        "Share a prefix",
        "3.2",
        [
            f"C comes with a prompt of {pool.speakers['C'].prompt} tokens, the first of which A had too. Full blocks "
            "are found by a SHA-256 over all tokens up to their end.",
            f"{counted(grant.hit_blocks, 'block')} hit, {listed(grant.blocks[: grant.hit_blocks])}: "
            f"{counted(grant.cached_tokens, 'token')} need no computing. Reference counts {listed(counts)}.",
            f"Only {counted(len(grant.blocks) - grant.hit_blocks, 'block')} is new: "
            f"{listed(grant.blocks[grant.hit_blocks :])}.",
        ],
    )


def found_whole(pool: TourPool) -> Scene:
    """A prompt is in the cache to its end."""
    request = steps_pb2.StepRequest()
    pool.admit(request, "D")
    grant = grant_of(pool, pool.ask(request), "D")
    return Scene(
        "A prompt found whole",
        "3.2",
        [
            f"D's {grant.granted_tokens} tokens are all there: blocks {listed(grant.blocks)}, none of them new.",
            f"{grant.cached_tokens} count as cached. The last one is computed once more for its logits, and its keys "
            "and values go to the null block: no copy, no block recomputed.",
        ],
    )
