"""What sampling one row gives."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one position, of the model's own distribution.

    Attributes:
        token: the token chosen there, or the prompt's.
        logprob: its log-probability.
        top: the most likely tokens with theirs, best first, equal ones in the order of their ids.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One row's outcome.

    Attributes:
        token: the token chosen; meaningless with a problem.
        logprobs: what the row asked for; None when it asked for nothing.
        problem: why no token could be chosen, for people; empty when one was.
    """

    token: int
    logprobs: TokenLogprobs | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step brought, by sequence id.

    Attributes:
        sampled: for every row that samples.
        prompt_logprobs: the next entries of ``Sequence.prompt_logprobs``, where the step computed such positions.
    """

    sampled: dict[int, Sampled]
    prompt_logprobs: dict[int, list[TokenLogprobs]]
