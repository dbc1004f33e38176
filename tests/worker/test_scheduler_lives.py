"""Random lives of a worker on a pool too small for it: groups, swaps, aborts, managers that die, in any order."""

import collections
import random

import pytest
from device_memory import lone_run
from scheduler_loop import Loop, make_sequence

from model_worker.engine.batch import Limits
from model_worker.engine.sequence import EndReason, Phase, Sequence

LIVES = 15


def live(dice: random.Random, host_blocks: int, late_swaps: bool, restarts: float) -> tuple[Loop, list[Sequence]]:
    """One life: twelve to nineteen requests of up to four samples, far more than the pool holds."""
    size = dice.choice([1, 2, 3, 4, 12])
    most = dice.randrange(4, 9)
    limits = Limits(
        num_blocks=dice.randrange(26, 40) // size + (size > 4),
        block_size=size,
        max_batch_tokens=dice.randrange(most, 20),
        max_sequences=most,
        max_chunk=dice.randrange(2, 20),
        watermark_blocks=dice.randrange(2),
        steps_ahead=dice.choice([0, 1, 2, 5]),
    )
    loop = Loop(limits, reserve=False, adopt=dice.random() < 0.7, host_blocks=host_blocks, late_swaps=late_swaps)
    requests: list[Sequence] = []
    arrivals = dice.randrange(12, 20)
    while len(requests) < arrivals:
        while dice.random() < 0.6:
            shared = [1, 2, 3, 4, 5, 6, 7][: dice.choice([0, 4, 7])]
            prompt = [*shared, *(dice.randrange(20, 30) for _ in range(dice.randrange(1, 6)))]
            stops = frozenset(range(3)) if dice.random() < 0.3 else frozenset()
            samples = dice.choice([1, 1, 1, 2, 3, 4])
            requests.append(make_sequence(prompt, dice.randrange(1, 12), stops, dice.randrange(-1, 2), samples))
            loop.scheduler.add(requests[-1])
        if requests and dice.random() < 0.05:
            loop.scheduler.abort(dice.choice(requests))
        if dice.random() < restarts:
            loop.lose_manager(answered=dice.random() < 0.5, steps_in_hand=dice.randrange(4))
        loop.quiet = dice.random() < 0.9
        loop.turn()
    loop.drain()
    return loop, requests


@pytest.mark.property
@pytest.mark.parametrize("restarts", [0.0, 0.1], ids=["one-manager", "managers-die"])
@pytest.mark.parametrize("late_swaps", [False, True], ids=["swaps-in-order", "swaps-behind"])
@pytest.mark.parametrize("host_blocks", [0, 8, 60])
def test_every_sample_ends_as_if_alone_and_the_pool_is_whole(
    host_blocks: int, late_swaps: bool, restarts: float
) -> None:
    seen: collections.Counter[str] = collections.Counter()
    for number in range(LIVES):
        loop, requests = live(random.Random(f"{host_blocks} {late_swaps} {number}"), host_blocks, late_swaps, restarts)
        for request in requests:
            samples = request.group.members if request.group is not None else [request]
            for sample in samples:
                prompt = sample.tokens[: sample.prompt_length]
                expected = lone_run(prompt, sample.limit, sample.stop.token_ids, sample.sampling.index)
                assert sample.phase is Phase.ENDED
                if sample.end_reason not in (EndReason.ABORTED, EndReason.REJECTED):
                    assert sample.tokens == expected
                assert sample.tokens == expected[: len(sample.tokens)]
                if sample.end_reason is EndReason.REJECTED:  # its group may outgrow the pool, or one more token of each
                    assert len(samples) * loop.scheduler.blocks(sample.limit + 1) > loop.limits.num_blocks
        loop.assert_whole()
        for batch in loop.batches:
            assert sum(row.end - row.start for row in batch.rows) <= loop.limits.max_batch_tokens
        seen["unsent"] += loop.unsent
        for name in ("forks", "swaps", "preemptions", "delayed_requests"):
            seen[name] += getattr(loop.scheduler.statistics, name)
        seen["copies"] += sum(len(batch.copies) for batch in loop.batches)
        seen["returns"] += sum(len(batch.swaps_in) > 0 for batch in loop.batches)
        seen["rooms"] += sum(any(request.advances.rooms) for request in loop.requests)
        seen["whole groups"] += sum(len(list(request.releases)) > 1 for request in loop.requests)
    print(dict(seen))
    assert min(seen[name] for name in ("forks", "preemptions", "copies", "delayed_requests", "unsent")) > LIVES
    assert seen["rooms"] > 0
    assert (seen["swaps"] > LIVES // 2) == (seen["returns"] > LIVES // 2) == (host_blocks > 0)
