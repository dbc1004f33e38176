"""Beam search: which continuations of which beams go on. Pure: log-probabilities in, choices out.

Scores, length penalty and the end of the search are those of transformers, so that both give the same texts. A beam's
score is the sum of its log-probabilities; a finished text's score is that sum over the number of generated tokens to
the power of ``length_penalty``; only a candidate among the ``width`` best may finish. The search ends when ``width``
texts are finished and either it is to stop early or the best beam at its present length scores no better than the
worst of them.
"""

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from model_worker.sampling.params import StopConditions

if TYPE_CHECKING:
    from model_worker.engine.sequence import Sequence

Candidates = Rows[tuple[int, float]]
"""(token, log-probability), best first."""


class Continuation(NamedTuple):
    """A beam goes on: ``parent`` is its index among the beams of this step, ``score`` its sum with the new token."""

    parent: int
    token: int
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text.

    Attributes:
        tokens: the generated ones, the one that stopped it included.
        logprob: the sum of their log-probabilities.
        score: what it is ranked by.
        stopped: by a stop token; else by the length limit.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    stopped: bool


@dataclass(slots=True)
class BeamSearch:
    """The search of one request.

    Attributes:
        width: beams kept.
        length_penalty: exponent of the length in a finished text's score.
        early_stopping: end as soon as ``width`` texts are finished.
        stop: what finishes a text.
        max_tokens: the most tokens generated.
        scores: of the running beams, best first.
        finished: at most ``width`` texts, best first.
        waiting: candidates of beams whose step has ended, while other beams have still to run theirs.
    """

    width: int
    length_penalty: float
    early_stopping: bool
    stop: StopConditions
    max_tokens: int
    scores: list[float] = field(default_factory=lambda: [0.0])
    finished: list[Hypothesis] = field(default_factory=list)
    waiting: "dict[Sequence, Candidates]" = field(default_factory=dict)

    @property
    def candidates_per_beam(self) -> int:
        """So many that ``width`` of them go on even if every beam may stop at every stop token."""
        return max(2, 1 + len(self.stop.token_ids)) * self.width

    def step(self, beams: Rows[tuple[Rows[int], Candidates]]) -> list[Continuation]:
        """Choose among the candidates of all beams.

        Args:
            beams: the generated tokens and the candidates of each running beam, in the order of ``scores``.

        Returns:
            The beams that go on, best first, at most ``width``; none when the search is over.
        """
        length = len(beams[0][0]) + 1
        pool = [
            Continuation(parent, token, self.scores[parent] + logprob)
            for parent, (_, candidates) in enumerate(beams)
            for token, logprob in candidates
            if length > self.stop.min_tokens or token not in self.stop.token_ids
        ]
        pool.sort(key=lambda one: -one.score)
        going_on: list[Continuation] = []
        for rank, one in enumerate(pool[: self.candidates_per_beam]):
            stopped = one.token in self.stop.token_ids
            if not stopped and length < self.max_tokens:
                going_on.append(one)
            elif rank < self.width:
                tokens = (*beams[one.parent][0], one.token)
                self.finished.append(Hypothesis(tokens, one.score, self._ranked_by(one.score, length), stopped))
        self.finished.sort(key=lambda one: -one.score)
        del self.finished[self.width :]
        going_on = going_on[: self.width]
        self.scores = [one.score for one in going_on]
        return going_on if going_on and self._goes_on(length) else []

    def _goes_on(self, length: int) -> bool:
        if len(self.finished) < self.width:
            return True
        if self.early_stopping:
            return False
        return self._ranked_by(self.scores[0], length) > self.finished[-1].score

    def _ranked_by(self, logprob: float, length: int) -> float:
        """The score of a text of so many generated tokens. A penalty may be any number: where the power leaves the
        floats, so does the score, as it does in transformers' tensors."""
        try:
            return logprob / math.pow(length, self.length_penalty)
        except OverflowError:
            return math.copysign(0.0, logprob)
        except ZeroDivisionError:
            return math.copysign(math.inf, logprob) if logprob else 0.0
