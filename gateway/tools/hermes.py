"""Hermes, Qwen and many others: ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``, anywhere in the text."""

from collections.abc import Sequence

from gateway.grammars import quoted
from gateway.tools.call_object import CallObject
from gateway.tools.functions import Function
from gateway.tools.json_scanner import WHITE_SPACE
from gateway.tools.parser import CharacterParser
from gateway.tools.structure import NEW_LINE, Spelling, arguments_rules, call_object, joined

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser(CharacterParser):
    """Takes a call as complete where its object is: small models forget the closing tag."""

    def start(self, character: str) -> None:
        if self.expect(OPEN, character):
            self.state = self._opened

    def _opened(self, character: str) -> None:
        self.begin_call(character, CallObject(self.names), ended=self._after, failed=self.start)

    def _after(self, character: str) -> None:
        self.held += character
        rest = self.held.lstrip(WHITE_SPACE)
        if rest == CLOSE:
            self.held, self.state = "", self.start
        elif not CLOSE.startswith(rest):
            held, self.held = self.held[:-1], ""
            self.events.say(held)
            self.state = self.start
            self.state(character)

    def let_go(self) -> None:
        if self.state == self._after:
            # White space and the beginning of a closing tag: the syntax of a call that is told already.
            self.held = ""
        super().let_go()


def rules(functions: Sequence[Function], most: int, spelling: Spelling) -> list[str]:
    """The Lark rules of ``calls``: 1 to ``most`` of them."""
    opening = f"{spelling.mark(OPEN)} {quoted(NEW_LINE)}"
    closing = f"{quoted(NEW_LINE)} {spelling.mark(CLOSE)}"
    calls = [f"{opening} {call_object(function, place)} {closing}" for place, function in enumerate(functions)]
    return joined(calls, quoted(NEW_LINE), most) + arguments_rules(functions)
