"""The functions that a request offers to the model, and how free the model is to call them."""

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOOLS = "tools"
TOOL_CHOICE = "tool_choice"

# Every function is written out in the prompt.
MAX_FUNCTIONS = 128

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Function:
    """A function.

    Attributes:
        name: what calls name.
        description: what it is for; None when nobody said.
        parameters: a JSON Schema of its arguments, which are an object; None when there are none.
        strict: whether calls that the model was free not to make match the schema too.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def described(self) -> dict[str, Any]:
        """As chat templates read it."""
        described: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            described["description"] = self.description
        if self.parameters is not None:
            described["parameters"] = self.parameters
        return {"type": "function", "function": described}


class Freedom(enum.Enum):
    """What an answer may be."""

    TEXT = enum.auto()
    TEXT_OR_CALLS = enum.auto()
    CALLS = enum.auto()


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """How free the model is.

    Attributes:
        freedom: what an answer may be.
        only: names of the functions that may be called; None for all.
        once: whether an answer is one call at most.
    """

    freedom: Freedom
    only: frozenset[str] | None = None
    once: bool = False


NONE = ToolChoice(Freedom.TEXT)
AUTO = ToolChoice(Freedom.TEXT_OR_CALLS)
REQUIRED = ToolChoice(Freedom.CALLS)


def named(function: str) -> ToolChoice:
    """One call of this function."""
    return ToolChoice(Freedom.CALLS, frozenset({function}), once=True)


def problems(functions: Sequence[Function]) -> Iterator[tuple[str, str, str]]:
    """What is wrong with functions: (where in them, what was found, what is allowed)."""
    if len(functions) > MAX_FUNCTIONS:
        yield "", f"{len(functions)} functions", f"at most {MAX_FUNCTIONS}"
        return
    names: set[str] = set()
    for place, function in enumerate(functions):
        if not _NAME.fullmatch(function.name):
            yield f"[{place}]", "another name", "1 to 64 of letters, digits, _, . and - as a function's name"
        elif function.name in names:
            yield f"[{place}]", "the name of an earlier one", "each name once"
        names.add(function.name)
        kind = "object" if function.parameters is None else function.parameters.get("type", "object")
        if kind != "object":
            yield f"[{place}]", "parameters of another type", "a schema of type object, for arguments have names"
