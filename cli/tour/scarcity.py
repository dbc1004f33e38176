"""Scenes without room: run out, preempt, swap, recompute, free."""

from cli.amounts import counted
from cli.tour.pool import BLOCK_SIZE, PREFILL, SLOW_COPY, TourPool
from cli.tour.scene import Scene, grant_of, listed, moved
from octavo.kv.v1 import common_pb2, steps_pb2


def run_out(pool: TourPool) -> Scene:
    """A prompt needs more than there is."""
    request = steps_pb2.StepRequest()
    pool.release(request, "D")
    pool.admit(request, "E")
    response = pool.ask(request)
    (waiting,) = response.waiting
    reason = steps_pb2.WaitingReason.Name(waiting.reason).removeprefix("WAITING_REASON_")
    return Scene(
        "Run out: a prompt waits",
        "3.4",
        [
            "D has ended; its blocks lose a reference each, and A, B and C keep them.",
            f"E comes with {pool.speakers['E'].prompt} new tokens and needs {counted(waiting.needed, 'block')}; "
            f"{response.stats.free_blocks + response.stats.cached_blocks} can be granted.",
            f"It is answered `waiting`, reason {reason}: nothing was taken from anybody for it. Whole prompts are "
            "checked before a single block is given.",
        ],
    )


def fill(pool: TourPool) -> Scene:
    """Who runs takes what is left."""
    request = steps_pb2.StepRequest()
    pool.release(request, "E")
    for letter in ("A", "B", "C"):
        pool.advance(request, letter, len(pool.table(letter)) * BLOCK_SIZE + 1)
    response = pool.ask(request)
    granted = [f"{pool.letter(grant.seq)} block {listed(grant.blocks)}" for grant in response.grants]
    return Scene(
        "The last free blocks",
        "3.5",
        [
            "E gave up. A, B and C go on and each crosses a block edge, in rank order (rule 3): who came first is "
            "served first.",
            f"{', '.join(granted)}. Free: {response.stats.free_blocks}.",
        ],
    )


def preempt(pool: TourPool) -> Scene:
    """Somebody gives way, and swapping is the cheaper way."""
    request = steps_pb2.StepRequest()
    for letter in ("A", "B", "C"):
        pool.advance(request, letter, len(pool.table(letter)) * BLOCK_SIZE + 1)
    entries = pool.sequence("C").table
    response = pool.ask(request)
    (victim,) = response.preempted
    own = [entry.block for entry in entries if entry.ref_count == 1]
    return Scene(
        "Preempt, by swapping out",
        "3.4",
        [
            f"{' and '.join(pool.letter(grant.seq) for grant in response.grants)} need a block each, and none is free. "
            f"The worst-ranked gives way: {pool.letter(victim.seq)}, which came last.",
            f"Its own blocks {listed(own)} are enough; those it shared stay with A and B.",
            _costs(victim) + f": {_mode(victim)}. To the host: {moved(response.swaps_out)}.",
        ],
    )


def free(pool: TourPool) -> Scene:
    """Blocks come back, with a digest or without."""
    request = steps_pb2.StepRequest()
    for letter in ("A", "B"):
        pool.release(request, letter)
    stats = pool.ask(request).stats
    return Scene(
        "Free",
        "3.1",
        [
            f"A and B are done: {stats.free_blocks + stats.cached_blocks} of {stats.num_blocks} can be granted again.",
            f"{stats.cached_blocks} of them carry a digest: they went to the back of the free list, last block of a "
            f"table first, and can be hit until they are taken. {stats.free_blocks} do not: they went to the front.",
        ],
    )


def resume(pool: TourPool) -> Scene:
    """A parked sequence comes back from the host."""
    request = steps_pb2.StepRequest()
    pool.resume(request, "C")
    response = pool.ask(request)
    grant = grant_of(pool, response, "C")
    host = response.stats.host_blocks - response.stats.host_free_blocks
    return Scene(
        "Swap in",
        "3.4",
        [
            f"There is room for C: it gets blocks {listed(grant.blocks)}, the last one for its next token.",
            f"From the host: {moved(response.swaps_in)}. Nothing is computed again; {host} host blocks stay in use.",
            "It lies elsewhere than before, and only its table knows.",
        ],
    )


def recompute(pool: TourPool) -> Scene:
    """Somebody gives way, and computing again is the cheaper way."""
    request = steps_pb2.StepRequest()
    pool.admit(request, "F")
    hit = grant_of(pool, pool.ask(request), "F")
    shown = pool.look().summary.stats
    request = steps_pb2.StepRequest(
        rates=common_pb2.Rates(prefill_tokens_per_second=PREFILL, copy_bytes_per_second=SLOW_COPY)
    )
    pool.advance(request, "C", (len(pool.table("C")) + shown.free_blocks + shown.cached_blocks) * BLOCK_SIZE + 1)
    response = pool.ask(request)
    (victim,) = response.preempted
    return Scene(
        "Preempt, by forgetting",
        "3.4",
        [
            f"F came, found {counted(hit.cached_tokens, 'token')} in the cache and took the rest: "
            f"{shown.free_blocks + shown.cached_blocks} left. Meanwhile the way to the host has become slow.",
            f"C needs one more block than there is, and {pool.letter(victim.seq)} came last. {_costs(victim)}: "
            f"{_mode(victim)}.",
            "Its blocks are dropped and the manager forgets it; its worker keeps the tokens and brings it again.",
        ],
    )


def again(pool: TourPool) -> Scene:
    """A recompute victim comes back, and finds what the cache kept."""
    request = steps_pb2.StepRequest()
    pool.release(request, "C")
    pool.admit(request, "F", again=True)
    grant = grant_of(pool, pool.ask(request), "F")
    return Scene(
        "Come back",
        "3.4",
        [
            f"C has ended, and F is admitted again with its {pool.speakers['F'].committed} tokens.",
            f"{counted(grant.cached_tokens, 'token')} are still in the cache, "
            f"{grant.granted_tokens - grant.cached_tokens} are computed anew.",
        ],
    )


def end(pool: TourPool) -> Scene:
    """Everybody is gone, and everything adds up."""
    request = steps_pb2.StepRequest()
    pool.release(request, "F")
    stats = pool.ask(request).stats
    totals = pool.look().summary.totals
    return Scene(
        "The end",
        "7",
        [
            f"Nobody is left: {stats.free_blocks} free + {stats.cached_blocks} cached + {stats.referenced_blocks} "
            f"referenced + {stats.fenced_blocks} fenced = {stats.num_blocks} blocks (I1).",
            f"In {counted(pool.step, 'step')}: {totals.granted_blocks} blocks granted, {totals.hit_tokens} of "
            f"{totals.lookup_tokens} prompt tokens found in the cache, {counted(totals.forks, 'fork')}, "
            f"{counted(totals.copied_blocks, 'block')} copied, {totals.swap_preemptions} swapped out, "
            f"{totals.recompute_preemptions} recomputed.",
            "Every invariant was checked after every step, and every sequence read back through its table.",
        ],
    )


def _costs(victim: steps_pb2.Preempted) -> str:
    return (
        f"Computing again would cost {victim.recompute_seconds * 1_000:.1f} ms, swapping out and in "
        f"{victim.swap_seconds * 1_000:.1f} ms"
    )


def _mode(victim: steps_pb2.Preempted) -> str:
    return steps_pb2.PreemptionMode.Name(victim.mode).removeprefix("PREEMPTION_MODE_").lower()
