"""Finds stop strings in a stream of text.

The text ends right before the stop string that completes first; of several that complete at the same character, before
the longest. That reading depends on the text alone, so any chunking gives the same answer, and a stream never waits for
a longer stop string once a shorter one is complete: with stops `ab` and `abc` the text `xabc` ends at `x`, by `ab`.

The scanner is the automaton of Aho and Corasick (CACM 18(6), 1975). A state is the longest end of the text so far that
begins some stop string; just these characters are held back, since only they can still become part of a match.

```
stop  "own fox"     text  the br|own f      held back: "own f", the state
                          shown |           next "o": held "own fo"; next "a": all is shown, nothing is held
```
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

# Bounds the automaton: one state per character of each stop string.
MAX_STOP_CHARACTERS = 1024


class Scanned(NamedTuple):
    """What a piece of text led to."""

    text: str
    """Text that no stop string can cut any more."""

    stop: str | None
    """The stop string that ended the text; None while it goes on."""


class StopAutomaton:
    """The stop strings of a request; immutable, shared by its samples.

    States are numbered from 0, the empty match. `next[state]` maps a character to the longer match, `shorter[state]` is
    the longest proper end of the state's text that is a state too, `stop[state]` the longest stop string that the
    state's text ends with.
    """

    def __init__(self, stops: Sequence[str]):
        """Raises ValueError for an empty stop string or one above MAX_STOP_CHARACTERS."""
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.stop: list[str | None] = [None]
        for index, stop in enumerate(stops):
            if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
                raise ValueError(f"stop[{index}] has {len(stop)} characters, allowed are 1 to {MAX_STOP_CHARACTERS}")
            self._insert(stop)
        self.shorter = [0] * len(self.next)
        self._link()
        self.first_characters = frozenset(self.next[0])

    def step(self, state: int, character: str) -> int:
        """The state after one more character. Amortised constant time over a text: each step back undoes one forth."""
        while True:
            longer = self.next[state].get(character)
            if longer is not None:
                return longer
            if state == 0:
                return 0
            state = self.shorter[state]

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self.next[state]:
                self.next[state][character] = len(self.next)
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.stop.append(None)
            state = self.next[state][character]
        self.stop[state] = stop

    def _link(self) -> None:
        """Fill `shorter` by growing depth: a state's depends on those of smaller depth only."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for character, longer in self.next[state].items():
                shorter = self.step(self.shorter[state], character)
                self.shorter[longer] = shorter
                if self.stop[longer] is None:
                    self.stop[longer] = self.stop[shorter]
                queue.append(longer)


class StopScanner:
    """Scans one stream of text, which ends behind a stop string that is ``shown`` instead of before it.

    The scanner sees the answer only, so a stop string never matches across the border of prompt and answer.
    """

    def __init__(self, automaton: StopAutomaton, *, shown: bool = False):
        self._automaton = automaton
        self._shown = shown
        self._state = 0
        self._held = ""
        self._stop: str | None = None

    def push(self, text: str) -> Scanned:
        """Take the next piece. After a stop was found everything is ignored and the stop is told again."""
        automaton, state = self._automaton, self._state
        if self._stop is not None:
            return Scanned("", self._stop)
        if state == 0 and automaton.first_characters.isdisjoint(text):
            return Scanned(text, None)
        for index, character in enumerate(text):
            state = automaton.step(state, character)
            stop = automaton.stop[state]
            if stop is not None:
                # The state's text, and so the stop, lies wholly in what was held back plus this piece.
                scanned = self._held + text[: index + 1]
                self._stop, self._held = stop, ""
                return Scanned(scanned if self._shown else scanned[: -len(stop)], stop)
        self._state = state
        text = self._held + text
        edge = len(text) - automaton.depth[state]
        self._held = text[edge:]
        return Scanned(text[:edge], None)

    def finish(self) -> str:
        """Say that no text follows; returns what was held back. Empty after a stop."""
        held, self._held = self._held, ""
        return held
