"""The kinds of value that request parameters have, each with its bounds.

A kind looks at one value and yields what is wrong with it. Text that a user wrote is never part of a problem: problems
are logged.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway import json_words
from gateway.grammars import Grammar
from gateway.tools import functions
from gateway.tools.functions import Function, ToolChoice


class Problem(NamedTuple):
    """What is wrong. ``at`` is empty for the value itself, or names an element, such as ``[3]``."""

    at: str
    found: str
    allowed: str | None = None
    """What is allowed for the element; None for the value itself, of which the kind says it."""


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the floats
        return False


class Kind(Protocol):
    """A type with bounds."""

    @property
    def allowed(self) -> str:
        """What is allowed, for people."""
        ...

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        """Nothing for an allowed value. ``vocab_size`` bounds token ids."""
        ...


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number in [low, high]."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if isinstance(value, float):
            yield Problem("", json_words.number(value))
        elif not isinstance(value, int) or isinstance(value, bool):
            yield Problem("", json_words.kind(value))
        elif not self.low <= value <= self.high:
            yield Problem("", json_words.number(value))


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in [low, high], or (low, high] when ``above_low``."""

    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False

    @property
    def allowed(self) -> str:
        bounds = []
        if self.low > -math.inf:
            bounds.append(f"{'above' if self.above_low else 'at least'} {self.low:g}")
        if self.high < math.inf:
            bounds.append(f"at most {self.high:g}")
        return " ".join(["a finite number", " and ".join(bounds)]).strip()

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, int | float) or isinstance(value, bool):
            yield Problem("", json_words.kind(value))
        elif not (_is_finite(value) and self.low <= value <= self.high and (value > self.low or not self.above_low)):
            yield Problem("", json_words.number(value))


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false."""

    @property
    def allowed(self) -> str:
        return "true or false"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, bool):
            yield Problem("", json_words.kind(value))


@dataclass(frozen=True, slots=True)
class Text:
    """A string of at most ``max_bytes`` in UTF-8."""

    max_bytes: int
    min_bytes: int = 0

    @property
    def allowed(self) -> str:
        return f"text of {self.min_bytes} to {self.max_bytes} bytes"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, str):
            yield Problem("", json_words.kind(value))
            return
        size = len(value.encode(errors="surrogatepass"))
        if not self.min_bytes <= size <= self.max_bytes:
            yield Problem("", f"{size} bytes")


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few texts."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " or ".join([", ".join(self.words[:-1]), self.words[-1]])

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, str):
            yield Problem("", json_words.kind(value))
        elif value not in self.words:
            yield Problem("", "another word")


@dataclass(frozen=True, slots=True)
class Texts:
    """At most ``max_count`` strings of 1 to ``max_bytes`` bytes each."""

    max_count: int
    max_bytes: int

    @property
    def allowed(self) -> str:
        return f"at most {self.max_count} texts of 1 to {self.max_bytes} bytes each"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            yield Problem("", json_words.kind(value))
            return
        if len(value) > self.max_count:
            yield Problem("", f"{len(value)} texts")
            return
        element = Text(self.max_bytes, min_bytes=1)
        for position, text in enumerate(value):
            for problem in element.problems(text, vocab_size):
                yield Problem(f"[{position}]", problem.found, element.allowed)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """At most ``max_count`` ids of the model's vocabulary."""

    max_count: int

    @property
    def allowed(self) -> str:
        return f"at most {self.max_count} token ids of the model's vocabulary"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            yield Problem("", json_words.kind(value))
            return
        if len(value) > self.max_count:
            yield Problem("", f"{len(value)} ids")
            return
        element = Integer(0, vocab_size - 1)
        for position, id_ in enumerate(value):
            for problem in element.problems(id_, vocab_size):
                yield Problem(f"[{position}]", problem.found, f"a token id from 0 to {vocab_size - 1}")


@dataclass(frozen=True, slots=True)
class Biases:
    """A number in [-limit, limit] per token id of the model's vocabulary."""

    limit: float

    @property
    def allowed(self) -> str:
        return f"numbers from {-self.limit:g} to {self.limit:g} by token id of the model's vocabulary"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield Problem("", json_words.kind(value))
            return
        key, bias = Integer(0, vocab_size - 1), Number(-self.limit, self.limit)
        for id_, number in value.items():
            for part, kind in ((id_, key), (number, bias)):
                for problem in kind.problems(part, vocab_size):
                    yield Problem(f"[{id_}]", problem.found, kind.allowed)


@dataclass(frozen=True, slots=True)
class Language:
    """A grammar of at most ``max_bytes``; whether it is one of its notation is for the worker's compiler to say."""

    max_bytes: int

    @property
    def allowed(self) -> str:
        return f"a constraint of 1 to {self.max_bytes} bytes"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, Grammar):
            yield Problem("", json_words.kind(value))
        elif value.notation != "json_object":
            yield from Text(self.max_bytes, min_bytes=1).problems(value.source, vocab_size)


@dataclass(frozen=True, slots=True)
class Variables:
    """At most ``max_count`` JSON values by name, none of the names in ``taken``."""

    max_count: int
    taken: frozenset[str]

    @property
    def allowed(self) -> str:
        return f"an object of at most {self.max_count} fields, none of them {', '.join(sorted(self.taken))}"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield Problem("", json_words.kind(value))
        elif len(value) > self.max_count:
            yield Problem("", f"{len(value)} fields")
        elif taken := sorted(self.taken & value.keys()):
            yield Problem("", taken[0])


@dataclass(frozen=True, slots=True)
class Functions:
    """Functions that a model may call."""

    @property
    def allowed(self) -> str:
        return "an array of functions"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, tuple) or not all(isinstance(one, Function) for one in value):
            yield Problem("", json_words.kind(value))
        else:
            yield from (Problem(*problem) for problem in functions.problems(value))


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a model calls functions."""

    @property
    def allowed(self) -> str:
        return "none, auto, required or a function's name"

    def problems(self, value: object, vocab_size: int) -> Iterator[Problem]:
        if not isinstance(value, ToolChoice):
            yield Problem("", json_words.kind(value))
