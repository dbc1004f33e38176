"""Which beams live on: the survivor model.

Beam search keeps the k best of the candidates that its k beams offer, so a beam may leave several children and another
none. Who wins depends on a model's probabilities; here it is drawn:

    each place i of the k takes its parent: beam i with probability 1 - turnover, else another one, each alike

One parameter, ``turnover``, says how soon beams come to share their past. 0 would be parallel samples.
"""

import random
from collections import Counter
from collections.abc import Sequence

TURNOVER = 0.05
"""Fitted to the 37.6 % that two beams were published to save."""


class Survivors:
    """Draws the survivors of a token."""

    def __init__(self, turnover: float, seed: int) -> None:
        self._turnover = turnover
        self._dice = random.Random(f"{seed} beams")

    def choose(self, beams: Sequence[int]) -> tuple[list[int], list[int]]:
        """(beams that go on, a parent for each place that fell empty).

        Every beam with children goes on as the first of them; as many places are empty as beams have none.
        """
        count = len(beams)
        children: Counter[int] = Counter()
        for place in range(count):
            moves = count > 1 and self._dice.random() < self._turnover
            children[(place + self._dice.randrange(1, count)) % count if moves else place] += 1
        survivors = [beam for place, beam in enumerate(beams) if children[place]]
        parents = [beam for place, beam in enumerate(beams) for _ in range(children[place] - 1)]
        return survivors, parents
