"""Errors of the gateway's inside, free of any surface's field paths; each surface spells them in its own way."""

from collections.abc import Mapping


class InvalidRequest(Exception):
    """A request whose parameters or prompt cannot be served.

    Attributes:
        problems: what was found and what is allowed, by parameter name (``stop[2]`` for an element).
        reason: an UPPER_SNAKE word for programs.
    """

    def __init__(self, problems: Mapping[str, str], reason: str = "INVALID_FIELD") -> None:
        super().__init__("; ".join(f"{name}: {problem}" for name, problem in problems.items()))
        self.problems = dict(problems)
        self.reason = reason


class ContextExceeded(InvalidRequest):
    """A prompt that leaves no room for its answer in the model's context.

    Attributes:
        max_context: the tokens that the context holds, prompt and answer together.
    """

    def __init__(self, problems: Mapping[str, str], max_context: int) -> None:
        super().__init__(problems)
        self.max_context = max_context
