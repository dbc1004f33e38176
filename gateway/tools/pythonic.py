"""Llama 4 and others: an answer that is a Python list of calls, ``[f(a="x", b=2), g()]``."""

import ast
import json
import keyword
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.grammars import quoted
from gateway.schemas import closed
from gateway.tools.functions import TOOLS, Function
from gateway.tools.json_scanner import MAX_DEPTH, WHITE_SPACE, Scan
from gateway.tools.parser import CharacterParser
from gateway.tools.structure import Spelling, joined, json_rule

MARKS = ("<|python_start|>", "<|python_tag|>")
CLOSE = "<|python_end|>"

# What JSON calls these, where a model mixes the two.
_JSON_NAMES: Mapping[str, Any] = {"true": True, "false": False, "null": None}

_OPENING, _CLOSING = "([{", ")]}"

# Names that a part of a schema may refer to.
_DEFINITIONS = ("$defs", "definitions")


class PythonicParser(CharacterParser):
    """An answer that does not begin with such a list has no call. A call is told when it is complete."""

    def __init__(self, names: Container[str]) -> None:
        super().__init__(names)
        self._first = True

    def start(self, character: str) -> None:
        self.held += character
        rest = self.held.lstrip(WHITE_SPACE)
        if any(mark.startswith(rest) for mark in MARKS):
            return
        for mark in MARKS:
            rest = rest.removeprefix(mark)
        if rest.lstrip(WHITE_SPACE) == "[":
            self.state = self._item
        elif rest.strip(WHITE_SPACE):
            self.state = self.plain
            self.let_go()

    def _item(self, character: str) -> None:
        """Before a call of the list."""
        if character in WHITE_SPACE:
            self.held += character
        elif character == "]" and not self._first:
            self._close(character)
        else:
            self._first = False
            self.begin_call(character, PythonCall(self.names), ended=self._after, failed=self.plain)

    def _after(self, character: str) -> None:
        """Behind a call of the list."""
        if character in WHITE_SPACE:
            self.held += character
        elif character == ",":
            self.held += character
            self.state = self._item
        elif character == "]":
            self._close(character)
        else:
            self.held += character
            self.state = self.plain
            super().let_go()

    def _close(self, character: str) -> None:
        self.held, self.state = "", self._closed

    def _closed(self, character: str) -> None:
        """Behind the list."""
        self.held += character
        rest = self.held.lstrip(WHITE_SPACE)
        if rest == CLOSE:
            self.held, self.state = "", self.plain
        elif not CLOSE.startswith(rest):
            self.state = self.plain
            super().let_go()

    def let_go(self) -> None:
        if self.state in (self._after, self._closed):
            # The syntax of calls that are told already.
            self.held = ""
        super().let_go()


class PythonCall:
    """Reads one call, ``f(a=1)``, of literals by name.

    Attributes:
        name: the function, once the call is complete.
    """

    def __init__(self, names: Container[str]) -> None:
        self.name: str | None = None
        self._names = names
        self._source = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._arguments = ""

    def push(self, character: str) -> Scan:
        """Take the next character; never BEYOND."""
        self._source += character
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
            return Scan.MORE
        if self._depth == 0:
            return self._in_name(character)
        if character in "'\"":
            self._quote = character
        elif character in _OPENING:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                return Scan.BROKEN
        elif character in _CLOSING:
            self._depth -= 1
            if self._depth == 0:
                return Scan.LAST if self._read() else Scan.BROKEN
        return Scan.MORE

    def take(self) -> str:
        """The arguments, in JSON; empty before the call is complete."""
        arguments, self._arguments = self._arguments, ""
        return arguments

    def _in_name(self, character: str) -> Scan:
        if character == "(":
            self._depth = 1
            return Scan.MORE if self._source[:-1] in self._names else Scan.BROKEN
        return Scan.MORE if character.isalnum() or character in "_.-" else Scan.BROKEN

    def _read(self) -> bool:
        """Read the complete call; whether it is one."""
        name, _, rest = self._source.partition("(")
        try:
            # The name need not be one of Python's. Escapes that Python does not know stay as they are.
            with warnings.catch_warnings(action="ignore"):
                call = ast.parse(f"f({rest}", mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                return False
            given = {word.arg: _literal(word.value) for word in call.keywords}
            if None in given or len(given) < len(call.keywords):
                return False
            self._arguments = json.dumps(given, ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return False
        self.name = name
        return True


def _literal(node: ast.expr) -> Any:
    """A literal's value. Raises ValueError for anything else."""
    match node:
        case ast.Name(id) if id in _JSON_NAMES:
            return _JSON_NAMES[id]
        case ast.List(elements) | ast.Tuple(elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys, values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case _:
            value = ast.literal_eval(node)
            if isinstance(value, str):
                # A character beyond the BMP that is written as JSON writes it; half of one is an error.
                return value.encode("utf-16", "surrogatepass").decode("utf-16")
            if not isinstance(value, int | float | None):
                raise ValueError("no value of JSON")
            return value


def _key(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(str(text)):
            return text
    raise ValueError("no key of JSON")


def rules(functions: Sequence[Function], most: int, spelling: Spelling) -> list[str]:
    """The Lark rules of ``calls``: 1 to ``most`` of them. Values are JSON's, which the parser reads too.

    Raises:
        InvalidRequest: a schema does not name the properties, so there is nothing to write before the =.
    """
    calls: list[str] = []
    extra: list[str] = []
    for place, function in enumerate(functions):
        calls.append(f"{quoted(function.name + '(')} first_{place}_0 {quoted(')')}")
        extra += _properties(place, function)
    listed = joined(calls, quoted(", "), most, opening=quoted("["), closing=quoted("]"))
    return listed + extra


def _properties(place: int, function: Function) -> Iterator[str]:
    """Rules for a function's properties in the schema's order, the optional ones left out at will.

    ``first_<place>_<i>`` is what follows where none of the properties before the i-th was written, ``next_...`` what
    follows where one was.
    """
    schema = function.parameters or {}
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or (schema and "properties" not in schema and schema.keys() - {"type"}):
        raise InvalidRequest({f"{TOOLS}[{place}]": "a schema without properties found, this model's calls need them"})
    shared = {word: schema[word] for word in _DEFINITIONS if word in schema}
    required = schema.get("required")
    for i, (name, value) in enumerate(properties.items()):
        if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
            raise InvalidRequest(
                {f"{TOOLS}[{place}]": "a property that is no Python name found, this model writes them"}
            )
        written = f"{quoted(name + '=')} value_{place}_{i} next_{place}_{i + 1}"
        needed = isinstance(required, list) and name in required
        for state, before in (("first", ""), ("next", quoted(", "))):
            left_out = "" if needed else f" | {state}_{place}_{i + 1}"
            yield f"{state}_{place}_{i}: {before} {written}{left_out}"
        yield json_rule(f"value_{place}_{i}", closed({**shared, **value}) if isinstance(value, dict) else {})
    last = len(properties)
    yield f'first_{place}_{last}: ""'
    yield f'next_{place}_{last}: ""'
