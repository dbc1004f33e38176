"""Pieces of the Lark grammars that make a model call: JSON as the worker's compiler writes it, in a family's syntax."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from gateway.grammars import Grammar, quoted
from gateway.schemas import closed
from gateway.text.tokenizer import Tokenizer
from gateway.tools.functions import Function

NEW_LINE = "\n"

# The rule of a text that leads to a call.
LEAD = "lead"

ANY_TEXT = r"TEXT: /(.|\n)*/"

# As models write it, on one line: where any white space may stand, a small model writes it for ever.
JSON_STYLE: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

# Beside these a type would say nothing new, and compilers take fewer words beside them.
_WHOLE = ("$ref", "anyOf", "oneOf", "allOf")


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a model's vocabulary spells a family's marks.

    Attributes:
        special_ids: of marks that are tokens which no text spells.
        led: the mark before which any text may stand; None where calls are all there is.
    """

    special_ids: Mapping[str, int]
    led: str | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, marks: Iterable[str]) -> Self:
        """How a tokenizer spells marks.

        The compiler takes no special token for text, nor an added one between angle brackets, special or not: Qwen's
        ``<tool_call>`` is none and has to be told by its id all the same.
        """
        ids = {mark: tokenizer.id_of(mark) for mark in marks}
        added = {mark: id_ for mark, id_ in ids.items() if id_ is not None and id_ in tokenizer.added_ids}
        return cls(
            {
                mark: id_
                for mark, id_ in added.items()
                if id_ in tokenizer.special_ids or (mark.startswith("<") and mark.endswith(">"))
            }
        )

    def mark(self, mark: str) -> str:
        """A mark of the family's syntax."""
        return LEAD if mark == self.led else self._spelled(mark)

    def lead_rules(self) -> list[str]:
        """The rules of a text that ends with the first mark in it, and of one that no call follows."""
        return [] if self.led is None else [self.up_to(LEAD, self.led), "plain: TEXT", ANY_TEXT]

    def up_to(self, name: str, mark: str) -> str:
        """The rule of a text that ends with the first of a mark in it; beside ``ANY_TEXT``."""
        # No text spells a special token, so there is but one place where the text can end. A mark that is text ends
        # it where it is complete, or what follows could be text too.
        lazy = "" if mark in self.special_ids else "[lazy]"
        return f"{name}{lazy}: TEXT {self._spelled(mark)}"

    def _spelled(self, mark: str) -> str:
        id_ = self.special_ids.get(mark)
        return quoted(mark) if id_ is None else f"<[{id_}]>"


def json_rule(name: str, schema: Mapping[str, Any] | str) -> str:
    """A rule for JSON of a schema, which is a document or its text."""
    document = json.loads(schema) if isinstance(schema, str) else schema
    return f"{name}: %json {json.dumps({'x-guidance': JSON_STYLE, **document})}"


def nested_rule(name: str, grammar: Grammar) -> str:
    """A rule for the texts of a grammar."""
    match grammar.notation:
        case "json_schema":
            return json_rule(name, grammar.source)
        case "json_object":
            return json_rule(name, {"type": "object"})
        case "regex":
            return f"{name}: /{_ESCAPED.sub(_in_slashes, grammar.source)}/"
        case "lark":
            return f"{name}: %lark {{\n{grammar.source}\n}}"


# What ends an expression between slashes, where no backslash stands before it.
_ESCAPED = re.compile(r"\\.|[/\n]", re.DOTALL)


def _in_slashes(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(found[0], found[0])


def arguments(place: int) -> str:
    """The name of the rule for the arguments of the function at ``place``."""
    return f"arguments_{place}"


def arguments_rules(functions: Sequence[Function]) -> list[str]:
    """Those rules."""
    return [json_rule(arguments(place), arguments_schema(function)) for place, function in enumerate(functions)]


def arguments_schema(function: Function) -> Mapping[str, Any]:
    """The schema of a function's arguments, which are an object whatever it says: a function takes what it lists."""
    given = function.parameters
    if given is None:
        return NO_ARGUMENTS
    return closed(given if any(word in given for word in _WHOLE) else {"type": "object", **given})


def call_object(function: Function, place: int, key: str = "arguments") -> str:
    """A call as an object, in the words that the compiler's own JSON is made of.

    Its lexer looks for the longest word and never goes back: a longer one than a brace would keep any other object,
    which an answer may be too, from beginning here.
    """
    words = ["{", quoted("name"), ": ", quoted(function.name), ", ", quoted(key), ": "]
    return " ".join([*map(quoted, words), arguments(place), quoted("}")])


def joined(calls: Sequence[str], separator: str, most: int, *, opening: str = "", closing: str = "") -> list[str]:
    """The rules of ``calls``: 1 to ``most`` of any of the given ones."""
    more = f" ({separator} call){{0,{most - 1}}}" if most > 1 else ""
    return [f"calls: {opening} call{more} {closing}", "call: " + "\n    | ".join(calls)]
