"""What the families' parsers share: events, and a machine that takes characters.

A parser's events depend on the text alone, however it is cut into pieces: adjacent texts, and adjacent arguments of a
call, joined. What turns out to be no call is told as text, all of it from its first character on. If the call had
begun by then, its listener was told some of it already: ``Broken`` takes that back.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.tools.call_object import CallObject
from gateway.tools.json_scanner import WHITE_SPACE, Scan


@dataclass(frozen=True, slots=True)
class Said:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The next call, counted from 0, is one of this function."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """More of a call's arguments, in JSON."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A call is complete: its arguments are a JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A call that had begun is none; ``text`` is all that was written of it."""

    index: int
    text: str


Event = Said | Begun | Argued | Ended | Broken


class Parser(Protocol):
    """Finds calls in one answer's text."""

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        ...

    def finish(self) -> Sequence[Event]:
        """Say that no text follows."""
        ...


class Call(Protocol):
    """Reads one call."""

    @property
    def name(self) -> str | None:
        """The function, once it is known."""
        ...

    def push(self, character: str) -> Scan:
        """Take the next character; never BEYOND."""
        ...

    def take(self) -> str:
        """The arguments that became known since the last time, in JSON; empty before the name is known."""
        ...


class Events:
    """Collects events. White space beside calls is no text of its own: it goes with what follows, or with the calls."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._space = ""
        self._in_text = False
        self._calls = 0
        self._arguing = False

    def say(self, text: str) -> None:
        """Tell text."""
        if not self._in_text:
            if not text.strip(WHITE_SPACE):
                self._space += text
                return
            text, self._space, self._in_text = self._space + text, "", True
        if self._events and isinstance(last := self._events[-1], Said):
            self._events[-1] = Said(last.text + text)
        else:
            self._events.append(Said(text))

    def argue(self, name: str, arguments: str) -> None:
        """Tell more of a call, which begins with its first arguments."""
        if not arguments:
            return
        if not self._arguing:
            self._arguing = True
            self._events.append(Begun(self._calls, name))
        if self._events and isinstance(last := self._events[-1], Argued):
            self._events[-1] = Argued(last.index, last.text + arguments)
        else:
            self._events.append(Argued(self._calls, arguments))

    def end(self) -> None:
        """Tell the end of the call."""
        self._events.append(Ended(self._calls))
        self._calls += 1
        self._arguing, self._in_text, self._space = False, False, ""

    def fail(self, text: str) -> None:
        """Tell that what was read as a call is text."""
        if not self._arguing:
            self.say(text)
            return
        self._events.append(Broken(self._calls, self._space + text))
        self._calls += 1
        self._arguing, self._in_text, self._space = False, True, ""

    def take(self, *, last: bool = False) -> Sequence[Event]:
        """The events since the last time; with the ``last`` of them comes the white space that no call follows."""
        if last and self._space and not self._calls:
            self._events.append(Said(self._space))
            self._space = ""
        events, self._events = self._events, []
        return events


class CharacterParser:
    """A parser as a machine whose state is the method that takes the next character.

    Attributes:
        names: of the functions that may be called.
        events: told so far.
        held: characters read that nothing was told of yet.
    """

    def __init__(self, names: Container[str]) -> None:
        self.names = names
        self.events = Events()
        self.held = ""
        self.state: Callable[[str], None] = self.start
        self._written: list[str] = []
        self._call: Call = CallObject(names)
        self._ended: Callable[[str], None] = self.start
        self._failed: Callable[[str], None] = self.start

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        for character in text:
            self.state(character)
        return self.events.take()

    def finish(self) -> Sequence[Event]:
        """Say that no text follows."""
        if self.state == self.in_call:
            self.events.fail("".join(self._written))
        elif self.held:
            self.let_go()
        return self.events.take(last=True)

    def start(self, character: str) -> None:
        """The first state."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Take what is held at the end of the text: as text, where a family knows no better."""
        held, self.held = self.held, ""
        self.events.say(held)

    def plain(self, character: str) -> None:
        """Text to the end."""
        self.events.say(character)

    def expect(self, mark: str, character: str) -> bool:
        """Look for a mark in running text, telling what is none; whether this character completes it."""
        if not self.held and character != mark[0]:
            self.events.say(character)
            return False
        self.held += character
        while self.held and not mark.startswith(self.held):
            self.events.say(self.held[0])
            self.held = self.held[1:]
        return self.held == mark

    def reread(self, character: str) -> None:
        """What is held is no call: tell its first character and read the others, and this one, from the start."""
        held, self.held = self.held + character, ""
        self.events.say(held[0])
        self.state = self.start
        for one in held[1:]:
            self.state(one)

    def begin_call(
        self, character: str, call: Call, *, ended: Callable[[str], None], failed: Callable[[str], None]
    ) -> None:
        """Read a call; what is held belongs to it.

        Args:
            character: the first of what ``call`` reads.
            call: reads it.
            ended: the state behind the call.
            failed: the state in which the character that breaks it is read.
        """
        self._written, self.held = [self.held], ""
        self._call, self._ended, self._failed = call, ended, failed
        self.state = self.in_call
        self.in_call(character)

    def in_call(self, character: str) -> None:
        """Inside a call."""
        scan = self._call.push(character)
        if scan is Scan.BROKEN:
            self.events.fail("".join(self._written))
            self.state = self._failed
            self.state(character)
            return
        self._written.append(character)
        self.events.argue(self._call.name or "", self._call.take())
        if scan is Scan.LAST:
            self.events.end()
            self.state = self._ended
