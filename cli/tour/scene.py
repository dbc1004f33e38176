"""A scene of the tour: what happened, told in the manager's own numbers."""

from collections.abc import Iterable
from dataclasses import dataclass

from cli.tour.pool import TourError, TourPool
from octavo.kv.v1 import steps_pb2

WORDS_PER_SECOND, PICTURE_SECONDS = 7.0, 2.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One step of the tour.

    Attributes:
        rule: the section of docs/architecture.md that it shows.
        told: what happened and why, one line each.
    """

    title: str
    rule: str
    told: list[str]

    @property
    def seconds(self) -> float:
        """How long people look at it: the words are read, the picture is seen."""
        return sum(len(line.split()) for line in self.told) / WORDS_PER_SECOND + PICTURE_SECONDS


def grant_of(pool: TourPool, response: steps_pb2.StepResponse, letter: str) -> steps_pb2.Grant:
    """What an answer granted a sequence."""
    found = [grant for grant in response.grants if grant.seq == pool.speakers[letter].seq]
    if len(found) != 1:
        raise TourError(f"{letter} should have been granted something: {response}")
    return found[0]


def listed(numbers: Iterable[int]) -> str:
    """Block ids and counts beside each other."""
    return " ".join(map(str, numbers))


def moved(moves: steps_pb2.BlockMoves) -> str:
    """Which block goes where."""
    return ", ".join(f"{source} -> {target}" for source, target in zip(moves.sources, moves.destinations, strict=True))
