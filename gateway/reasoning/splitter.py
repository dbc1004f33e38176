"""Splits an answer into reasoning and content.

```
  <think>    First, ...    </think>    The answer is ...
|---------|--|---------------------|--|-----------------|
   OPENS   BEGINS    REASONS       ENDS      ANSWERS
```

Reasoning stands at the beginning or nowhere: a mark in the midst of content is text, as where a model writes of models.
A prompt may hold the beginning already; then the answer starts in a later phase. White space around the marks
belongs to them. What is told depends on the text alone, however it is cut into pieces: what may become a mark, and the
white space before it, is held back.
"""

import enum
from typing import NamedTuple

from gateway.reasoning.marks import Marks
from gateway.tools.json_scanner import WHITE_SPACE


class Split(NamedTuple):
    """What a piece of text led to."""

    reasoning: str
    content: str


class Phase(enum.Enum):
    """Where in an answer the next character lies, behind what is held back."""

    OPENS = enum.auto()
    BEGINS = enum.auto()
    REASONS = enum.auto()
    ENDS = enum.auto()
    ANSWERS = enum.auto()


class ReasoningSplitter:
    """Splits one answer.

    Args:
        marks: around its reasoning.
        start: where it starts.

    Attributes:
        phase: where it is.
    """

    def __init__(self, marks: Marks, start: Phase) -> None:
        self.phase = start
        self._marks = marks
        self._held = ""

    def push(self, text: str) -> Split:
        """Take the next piece."""
        if self._at(Phase.ANSWERS):
            return Split("", text)
        self._held += text
        if self._at(Phase.OPENS):
            self._open()
        self._skip_space(Phase.BEGINS, Phase.REASONS)
        reasoning = self._reason() if self._at(Phase.REASONS) else ""
        self._skip_space(Phase.ENDS, Phase.ANSWERS)
        return Split(reasoning, self._take() if self._at(Phase.ANSWERS) else "")

    def finish(self) -> Split:
        """Say that no text follows; the phase stays as it is. White space is an answer where nothing else is."""
        held = self._take()
        match self.phase:
            case Phase.OPENS:
                return Split("", held)
            case Phase.REASONS:
                return Split(held.rstrip(WHITE_SPACE), "")
        return Split("", "")

    def _at(self, phase: Phase) -> bool:
        return self.phase is phase

    def _open(self) -> None:
        begun = self._held.lstrip(WHITE_SPACE)
        if begun.startswith(self._marks.open):
            self.phase, self._held = Phase.BEGINS, begun.removeprefix(self._marks.open)
        elif not self._marks.open.startswith(begun):
            self.phase = Phase.ANSWERS

    def _skip_space(self, phase: Phase, following: Phase) -> None:
        """Leave a phase that consists of white space, once something else is held."""
        if self._at(phase) and (rest := self._held.lstrip(WHITE_SPACE)):
            self.phase, self._held = following, rest

    def _reason(self) -> str:
        """What of the text held is reasoning, whatever follows."""
        close = self._marks.close
        before, found, after = self._held.partition(close)
        if found:
            self.phase, self._held = Phase.ENDS, after
            return before.rstrip(WHITE_SPACE)
        begun = next((size for size in range(len(close) - 1, 0, -1) if before.endswith(close[:size])), 0)
        sure = before[: len(before) - begun].rstrip(WHITE_SPACE)
        self._held = before[len(sure) :]
        return sure

    def _take(self) -> str:
        held, self._held = self._held, ""
        return held
