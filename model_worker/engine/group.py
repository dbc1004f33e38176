"""Several samples of one prompt: they share its blocks, wait, run and give way together (design 3.9).

One member, the lead, is admitted like a lone sequence. The others follow: they are forked from it once it has computed
what all of them share, and compute the rest, at least one token, for themselves. So a request that just came and a
group that gave way and comes back are one and the same case:

    position     0 ........ shared ........ the members' lengths
    lead         | computed     | its own
    followers    | forked at    | their own: the first write copies the block that is shared
"""

from dataclasses import dataclass

from model_worker.engine.sequence import Phase, Sequence


@dataclass(slots=True, eq=False)
class Group:
    """The samples of one request.

    Attributes:
        members: by index; the first is the request's handle.
        id: the group's name at the manager, which is the id of the first member that it admitted; 0 before.
    """

    members: list[Sequence]
    id: int = 0

    @property
    def live(self) -> list[Sequence]:
        """The members that have not ended."""
        return [one for one in self.members if one.phase is not Phase.ENDED]

    @property
    def followers(self) -> list[Sequence]:
        """The members without a place of their own in the queue or on the device."""
        return [one for one in self.members if one.phase is Phase.FOLLOWING]

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
