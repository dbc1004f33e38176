"""Validated sampling parameters of one sample."""

from dataclasses import dataclass

# Dividing by less turns float32 logits into infinities; the limit distribution is the argmax anyway.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen.

    Attributes:
        temperature: divides the logits; below 1e-5 the most likely token is taken.
        top_k: keeps the k most likely tokens; 0 keeps all.
        top_p: keeps the smallest set of most likely tokens with at least this probability, in (0, 1].
        min_p: drops tokens less likely than ``min_p`` times the most likely one, in [0, 1].
        seed: keys the draws together with the sample's index and the position, 0 to 2**64 - 1.
        index: the sample's index within its request.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    index: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When a sample ends, apart from the token limit.

    Attributes:
        token_ids: tokens that end the sample, end-of-sequence tokens included unless they are ignored.
        min_tokens: generated before any of them may be chosen.
    """

    token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
