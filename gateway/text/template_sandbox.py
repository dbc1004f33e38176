"""The jinja2 environment chat templates run in: what Hugging Face templates expect, sandboxed and bounded.

A template comes with the model, its input from clients. The sandbox keeps templates from reaching into Python; the
bounds keep an input, however long or nested, from holding up the server: every pass of a loop and every call is a step,
steps and written text are limited, and each step looks at the clock. A single filter over a long text is not
interrupted: its cost is linear in the input, whose size the gateway limits.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_COUNTED = "counted"


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may take. An ordinary conversation takes some ten steps per message."""

    steps: int = 2_000_000
    """Passes of loops and calls."""

    characters: int = 16 * 1024 * 1024
    """Characters of the result; as many may be written inside macros."""

    seconds: float = 2.0


class RenderLimitError(TemplateError):
    """A rendering took more than its limits allow."""


class Budget:
    """What is left to one rendering."""

    def __init__(self, limits: RenderLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._deadline = clock() + limits.seconds
        self._steps = 0
        self._written = 0

    def step(self) -> None:
        """Count one pass of a loop or one call. Raises RenderLimitError."""
        self._steps += 1
        if self._steps > self._limits.steps:
            raise RenderLimitError(f"the chat template takes more than {self._limits.steps} steps on this input")
        if self._clock() > self._deadline:
            raise RenderLimitError(f"the chat template takes longer than {self._limits.seconds:g} s on this input")

    def write(self, characters: int) -> None:
        """Count written text. Raises RenderLimitError."""
        self._written += characters
        if self._written > self._limits.characters:
            raise RenderLimitError(f"the chat template writes more than {self._limits.characters} characters")


# Templates are compiled once and rendered by many threads, so what belongs to a rendering cannot live in them.
_budget: ContextVar[Budget | None] = ContextVar("chat_template_budget", default=None)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates, with every loop and call counted."""

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], finalize=_count_written
        )
        self.filters["tojson"] = _to_json
        self.filters[_COUNTED] = _counted
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format_: now().strftime(format_)
        # A function instead of the class, whose methods would be within a template's reach.
        self.globals["dict"] = lambda *args, **entries: dict(*args, **entries)
        # Its text grows with a number the template passes, without a step being counted.
        del self.globals["lipsum"]

    @contextmanager
    def limited(self, limits: RenderLimits, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
        """Renderings inside run on one budget. Raises RenderLimitError from within the rendering."""
        token = _budget.set(Budget(limits, clock))
        try:
            yield
        finally:
            _budget.reset(token)

    def call(self, context: Context, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        if (budget := _budget.get()) is not None:
            budget.step()
        return super().call(context, callee, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
        return tree


class Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; for serving, its body is all there is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as a class attribute without ClassVar)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # Names set inside stay inside, as where the tag is a call block.
        return nodes.Scope(body, lineno=line)


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """The values of a loop, one step each."""
    budget = _budget.get()
    for value in values:
        if budget is not None:
            budget.step()
        yield value


def _count_written(value: object) -> object:
    """What a `{{ }}` writes, counted. Constants are written once, when the template is compiled, without a budget."""
    if isinstance(value, str) and (budget := _budget.get()) is not None:
        budget.write(len(value))
    return value


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, >, & and ' for HTML; models were trained on the characters themselves.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
