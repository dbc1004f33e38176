"""Several samples of one prompt: they share its blocks, wait, run and give way together (design 3.9).

One member, the lead, is admitted like a lone sequence. The others follow: they are forked from it once it has computed
what all of them share, and compute the rest, at least one token, for themselves. So a request that just came and a
group that gave way and comes back are one and the same case:

    position     0 ........ shared ........ the members' lengths
    lead         | computed     | its own
    followers    | forked at    | their own: the first write copies the block that is shared
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from model_worker.engine.sequence import EndReason, Phase, Sequence

if TYPE_CHECKING:
    from model_worker.engine.beams import BeamSearch
    from model_worker.engine.progress import Progress


@dataclass(slots=True, eq=False)
class Group:
    """The samples of one request.

    Attributes:
        members: by index; the first is the request's handle. Those of a beam search come and go.
        returned: how many of them its caller gets; the best ones when there are more.
        search: the beam search that they are the beams of, None for independent samples.
        id: the group's name at the manager, which is the id of the first member that it admitted; 0 before.
        tells_logprobs: its caller asked for log-probabilities; to choose the best, they are computed all the same.
        held: what the members brought while it is not known which are returned.
    """

    members: list[Sequence]
    returned: int
    search: "BeamSearch | None" = None
    id: int = 0
    tells_logprobs: bool = False
    held: "list[Progress]" = field(default_factory=list)

    @property
    def live(self) -> list[Sequence]:
        """The members that have not ended."""
        return [one for one in self.members if one.phase is not Phase.ENDED]

    @property
    def followers(self) -> list[Sequence]:
        """The members without a place of their own in the queue or on the device."""
        return [one for one in self.members if one.phase is Phase.FOLLOWING]

    @property
    def places(self) -> int:
        """How many tables it may hold."""
        live = len(self.live)
        return live if self.search is None or not live else max(live, self.search.width)

    @property
    def chosen_at_end(self) -> bool:
        """Which members are returned is known only when all have ended."""
        return self.search is not None or self.returned < len(self.members)

    @property
    def shared_tokens(self) -> int:
        """How many tokens the live members have in common, less one if that is all of a member: it samples from it."""
        known = [one.tokens for one in self.live]
        shortest = min(map(len, known))
        first = known[0]
        common = shortest
        for tokens in known[1:]:
            if tokens[:common] != first[:common]:
                common = next(at for at in range(common) if tokens[at] != first[at])
        return min(common, shortest - 1)


def members_of(sequence: Sequence) -> list[Sequence]:
    """The live sequences that wait, run and give way with a sequence, itself included."""
    return sequence.group.live if sequence.group is not None else [sequence]


def places_of(sequence: Sequence) -> int:
    """How many tables a request may hold."""
    return sequence.group.places if sequence.group is not None else 1


def end_of(request: Sequence) -> EndReason | None:
    """How a request ended, None while a sample goes on. Samples that its caller gave up do not count beside others."""
    reasons = [one.end_reason for one in (request.group.members if request.group is not None else [request])]
    if None in reasons:
        return None
    return next((reason for reason in reasons if reason is not EndReason.ABORTED), EndReason.ABORTED)
