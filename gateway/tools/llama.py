"""Llama 3: an answer that is ``{"name": "f", "parameters": {...}}``, several separated by semicolons."""

from collections.abc import Sequence

from gateway.grammars import quoted
from gateway.tools.call_object import CallObject
from gateway.tools.functions import Function
from gateway.tools.json_scanner import WHITE_SPACE
from gateway.tools.parser import CharacterParser
from gateway.tools.structure import Spelling, arguments_rules, call_object, joined

TAG = "<|python_tag|>"
SEPARATOR = ";"


class LlamaParser(CharacterParser):
    """An answer that does not begin with a call has none: in its midst an object is an example more often."""

    def start(self, character: str) -> None:
        self._before(character, "")

    def _after(self, character: str) -> None:
        self._before(character, SEPARATOR)

    def _before(self, character: str, separator: str) -> None:
        self.held += character
        rest = self.held.lstrip(WHITE_SPACE)
        if separator:
            rest = rest.removeprefix(separator).lstrip(WHITE_SPACE)
        if TAG.startswith(rest):
            return
        rest = rest.removeprefix(TAG).lstrip(WHITE_SPACE)
        if rest == "{":
            self.held = self.held[:-1]
            self.begin_call(character, CallObject(self.names), ended=self._after, failed=self.plain)
        elif rest:
            self.state = self.plain
            self.let_go()

    def let_go(self) -> None:
        if self.state == self._after and not self.held.strip(WHITE_SPACE + SEPARATOR):
            self.held = ""
        super().let_go()


def rules(functions: Sequence[Function], most: int, spelling: Spelling) -> list[str]:
    """The Lark rules of ``calls``: 1 to ``most`` of them."""
    calls = [call_object(function, place, "parameters") for place, function in enumerate(functions)]
    return joined(calls, quoted(f"{SEPARATOR} "), most) + arguments_rules(functions)
