"""Mistral, in both of its syntaxes, anywhere in the text.

[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
[TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]...
"""

import re
import secrets
import string
from collections.abc import Sequence

from gateway.grammars import quoted
from gateway.tools.call_object import CallObject, NamedArguments
from gateway.tools.functions import Function
from gateway.tools.json_scanner import WHITE_SPACE
from gateway.tools.parser import CharacterParser
from gateway.tools.structure import Spelling, arguments, arguments_rules, call_object, joined

OPEN = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"

# A function's name, an id and the marks.
_MAX_HEAD = 160

_HEAD = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*", re.ASCII)

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9


class MistralParser(CharacterParser):
    """Reads whichever syntax follows the mark."""

    def start(self, character: str) -> None:
        if self.expect(OPEN, character):
            self.state = self._opened

    def _opened(self, character: str) -> None:
        if character == "[":
            self.held += character
            self.state = self._item
        elif character in WHITE_SPACE:
            self.held += character
        else:
            self.state = self._named
            self.state(character)

    def _item(self, character: str) -> None:
        """Before the first object of the array."""
        if character == "{":
            self.begin_call(character, CallObject(self.names), ended=self._next_item, failed=self.start)
        elif character in WHITE_SPACE:
            self.held += character
        else:
            self.reread(character)

    def _next_item(self, character: str) -> None:
        """Behind an object of the array."""
        is_open = "," in self.held
        if character in WHITE_SPACE or (character == "," and not is_open):
            self.held += character
        elif character == "{" and is_open:
            self.begin_call(character, CallObject(self.names), ended=self._next_item, failed=self.start)
        elif character == "]" and not is_open:
            self.held, self.state = "", self.start
        else:
            self.reread(character)

    def _named(self, character: str) -> None:
        """Inside a name and its marks, up to the arguments."""
        if character == "{":
            found = _HEAD.fullmatch(self.held.removeprefix(OPEN))
            if found is not None and found[1] in self.names:
                self.begin_call(character, NamedArguments(found[1]), ended=self.start, failed=self.start)
                return
        if character in "{\n" or len(self.held) == _MAX_HEAD:
            self.reread(character)
        else:
            self.held += character

    def let_go(self) -> None:
        if self.state == self._next_item:
            # The syntax of calls that are told already.
            self.held = ""
        super().let_go()


def rules(functions: Sequence[Function], most: int, spelling: Spelling) -> list[str]:
    """The Lark rules of ``calls``: 1 to ``most`` of them, in the newer syntax where the vocabulary has its marks."""
    opening = spelling.mark(OPEN)
    if ARGS in spelling.special_ids:
        calls = [
            f"{opening} {quoted(function.name)} {spelling.mark(ARGS)} {arguments(place)}"
            for place, function in enumerate(functions)
        ]
        return joined(calls, "", most) + arguments_rules(functions)
    calls = [call_object(function, place) for place, function in enumerate(functions)]
    listed = joined(calls, quoted(", "), most, opening=f"{opening} {quoted('[')}", closing=quoted("]"))
    return listed + arguments_rules(functions)


def call_id() -> str:
    """A new id, in the only form that Mistral's chat templates take when it comes back: nine letters and digits."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
