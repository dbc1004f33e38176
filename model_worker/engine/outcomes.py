"""What becomes of a group's members: the beams that go on, and the samples that are returned at the end."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from model_worker.engine.batch import Ended
from model_worker.engine.group import Group, members_of
from model_worker.engine.sequence import EndReason, Phase, Sequence

if TYPE_CHECKING:
    from model_worker.engine.scheduler import Scheduler


def advance_beams(scheduler: "Scheduler", group: Group) -> list[Sequence]:
    """Choose the next beams once the step of every beam has ended. Returns the finished texts when the search is over.

    A beam with several continuations goes on as the best of them; the others are forked from it, and a beam without one
    is released, both by the next request (design 3.3).
    """
    search = group.search
    assert search is not None
    beams = group.live
    if not beams or any(beam not in search.waiting for beam in beams):
        return []
    going_on = search.step([(beam.tokens[beam.prompt_length :], search.waiting[beam]) for beam in beams])
    search.waiting.clear()
    for beam in beams:
        beam.timeline.first_token = beam.timeline.first_token or scheduler.clock()
    scheduler.statistics.generated_tokens += len(going_on)
    if not going_on:
        return _finish_search(scheduler, group, beams)
    known = [list(beam.tokens) for beam in beams]
    heirs: set[int] = set()
    group.members = []
    for one in going_on:
        parent = beams[one.parent]
        beam = parent if one.parent not in heirs else _branch(parent, known[one.parent])
        heirs.add(one.parent)
        beam.tokens = [*known[one.parent], one.token]
        group.members.append(beam)
    for index, beam in enumerate(beams):
        if index not in heirs:
            scheduler.end(beam, EndReason.STOP)
    return []


def _branch(parent: Sequence, known: list[int]) -> Sequence:
    """Another continuation of a beam, to be forked from it."""
    return replace(
        parent,
        seq=0,
        phase=Phase.FOLLOWING,
        computed=0,
        committed=0,
        table=[],
        hit_blocks=0,
        forked=False,
        cut_from=(parent, len(known)),
        sampler_state=None,
        timeline=replace(parent.timeline),
    )


def _finish_search(scheduler: "Scheduler", group: Group, beams: list[Sequence]) -> list[Sequence]:
    search = group.search
    assert search is not None
    for beam in beams:
        scheduler.end(beam, EndReason.STOP)
    scheduler.statistics.finished_requests += 1
    first = beams[0]
    prompt = first.tokens[: first.prompt_length]
    return [
        replace(
            first,
            tokens=[*prompt, *text.tokens],
            end_reason=EndReason.STOP if text.stopped else EndReason.LENGTH,
            cumulative_logprob=text.logprob,
            sampling=replace(first.sampling, index=index),
        )
        for index, text in enumerate(search.finished[: group.returned])
    ]


def best_samples(group: Group) -> list[Sequence]:
    """The samples to return, those of the greatest log-probability, once all have ended."""
    ranked = sorted(group.members, key=lambda one: (-one.cumulative_logprob, one.sampling.index))
    return ranked[: group.returned]


def aborted(group: Group, live: Collection[Sequence]) -> list[Ended]:
    """What the caller of an aborted group hears: that every sample it waits for has ended.

    Args:
        live: the members that had not ended before.
    """
    if not group.chosen_at_end:
        return [Ended(one) for one in live]
    first = group.members[0]
    return [
        Ended(
            replace(
                first,
                tokens=first.tokens[: first.prompt_length],
                end_reason=EndReason.ABORTED,
                sampling=replace(first.sampling, index=index),
            )
        )
        for index in range(group.returned)
    ]


def abort_samples(scheduler: "Scheduler", request: Sequence, indexes: Collection[int]) -> list[Ended]:
    """End some samples of a request for its caller; nothing for those that had ended.

    The others go on as they do beside one that has come to its end: what it alone held goes with the next request, and
    whoever follows it finds another one to follow. To be called when ``Scheduler.abort`` may be, and not for samples
    that are chosen at the end.
    """
    live = members_of(request)
    ending = [one for one in live if one.phase is not Phase.ENDED and one.sampling.index in indexes]
    if len(ending) == len(live):
        return scheduler.abort(request)
    for one in ending:
        scheduler.end(one, EndReason.ABORTED)
    return [Ended(one) for one in ending]
