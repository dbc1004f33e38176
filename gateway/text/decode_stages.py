"""The stages a tokenizer's decoder is made of, each as a machine that takes its input piece by piece.

The `tokenizers` library decodes a whole list at once: a chain of stages, each mapping a list of tokens to a list of
tokens, and at the end the tokens are joined. Some stages keep one output token per input token, some fuse the list into
a single token:

```
ids -> tokens --[Replace]--> tokens --[ByteFallback]--> tokens --[Fuse]--> text --[Strip]--> text
                 token stages: push(token) -> tokens                       text stages: push(text) -> text
```

Every stage here keeps one promise, for any way of cutting its input: what `push` returned so far is a prefix of what
the library's stage makes of *every* continuation, and all pushes and `finish` together give exactly what it makes of
the whole. A chain of such stages keeps the promise too, so a stream equals the full decode by construction, and no
stage holds more than the bound its docstring states.
"""

from codecs import getincrementaldecoder
from collections.abc import Callable
from functools import cache
from typing import Protocol

REPLACEMENT_CHARACTER = "\ufffd"

# A character has at most four bytes in UTF-8, so an unfinished one at most three.
_UNFINISHED_BYTES = 3


class TokenStage(Protocol):
    """A stage that reads tokens and writes tokens."""

    def push(self, token: str) -> list[str]:
        """Take one token; returns the tokens that are now certain."""
        ...

    def finish(self) -> list[str]:
        """Say that no token follows; returns the rest."""
        ...

    def settle(self) -> None:
        """Drop what is held of finished characters and keep the rest, as at the border of prompt and answer."""
        ...


class TextStage(Protocol):
    """A stage behind the fusing one, or behind the join: it reads and writes pieces of one text."""

    def push(self, text: str) -> str:
        """Take the next piece; returns the text that is now certain."""
        ...

    def finish(self) -> str:
        """Say that no text follows; returns the rest."""
        ...

    def settle(self) -> None:
        """Drop what is held: it belongs to the text before the border."""
        ...


class EachToken:
    """Maps every token by itself (Replace before a fuse). Holds nothing."""

    def __init__(self, convert: Callable[[str], str]) -> None:
        self._convert = convert

    def push(self, token: str) -> list[str]:
        return [self._convert(token)]

    def finish(self) -> list[str]:
        return []

    def settle(self) -> None:
        pass


class FirstThenRest:
    """Maps the first token by one function and all others by another (Metaspace, WordPiece, join with spaces).

    Holds nothing.
    """

    def __init__(self, first: Callable[[str], str], rest: Callable[[str], str]) -> None:
        self._convert = first
        self._rest = rest

    def push(self, token: str) -> list[str]:
        converted = self._convert(token)
        self._convert = self._rest
        return [converted]

    def finish(self) -> list[str]:
        return []

    def settle(self) -> None:
        pass


class EndOfWord:
    """Turns a suffix such as `</w>` into a space, in the last token into nothing (BPEDecoder).

    Whether a token is the last is known when the next arrives, so one token is held.
    """

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._held: str | None = None

    def push(self, token: str) -> list[str]:
        held, self._held = self._held, token
        return [] if held is None else [held.replace(self._suffix, " ")]

    def finish(self) -> list[str]:
        held, self._held = self._held, None
        return [] if held is None else [held.replace(self._suffix, "")]

    def settle(self) -> None:
        # The word itself was the prompt's; the space that its suffix stands for opens the answer.
        if self._held is not None:
            self._held = self._suffix if self._held.endswith(self._suffix) else ""


@cache
def fallback_byte(token: str) -> int | None:
    """The byte that a token of the form `<0x41>` stands for, or None."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


class ByteFallback:
    """Joins runs of byte tokens to characters (ByteFallback).

    The library reads a run, from one ordinary token to the next, as a whole: if it is UTF-8 from end to end it is that
    text, else *every* byte of it becomes U+FFFD, also those of characters that were complete. So a run cannot be shown
    before it ends, unless it is broken already: from then on each byte is U+FFFD at once. Holds one run, at most.
    """

    def __init__(self) -> None:
        self._run = bytearray()
        self._broken = False
        self._utf8 = getincrementaldecoder("utf-8")("strict")

    def push(self, token: str) -> list[str]:
        byte = fallback_byte(token)
        if byte is None:
            return [*self.finish(), token]
        self._run.append(byte)
        if self._broken:
            del self._run[:-_UNFINISHED_BYTES]
            return [REPLACEMENT_CHARACTER]
        try:
            self._utf8.decode(bytes((byte,)))
        except UnicodeDecodeError:
            self._broken = True
            return [REPLACEMENT_CHARACTER] * len(self._run)
        return []

    def finish(self) -> list[str]:
        run, broken = bytes(self._run), self._broken
        self._begin_run(b"")
        if broken or not run:
            return []
        try:
            return [run.decode()]
        except UnicodeDecodeError:
            return [REPLACEMENT_CHARACTER] * len(run)

    def settle(self) -> None:
        run = bytes(self._run)
        for length in range(min(_UNFINISHED_BYTES, len(run)), -1, -1):
            self._begin_run(run[len(run) - length :])
            if not self._broken:
                break

    def _begin_run(self, unfinished: bytes) -> None:
        """Start a run with the first bytes of a character."""
        self._run[:] = unfinished
        self._utf8.reset()
        try:
            self._broken = self._utf8.decode(unfinished) != ""
        except UnicodeDecodeError:
            self._broken = True


class Utf8Text:
    """Joins bytes to text (ByteLevel). Holds at most three bytes, those of one unfinished character.

    The library decodes all bytes in one go and replaces each maximal broken part by U+FFFD, as Unicode recommends;
    Python's incremental decoder follows the same rule, with the decision at the first byte that cannot continue.
    """

    def __init__(self) -> None:
        self._utf8 = getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        return self._utf8.decode(data)

    def finish(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class StripLeft:
    """Removes up to `count` times `character` from the beginning of the text (Strip behind a fuse). Holds nothing."""

    def __init__(self, character: str, count: int) -> None:
        self._character = character
        self._left = count

    def push(self, text: str) -> str:
        while self._left and text:
            if text[0] != self._character:
                self._left = 0
                break
            text = text[1:]
            self._left -= 1
        return text

    def finish(self) -> str:
        return ""

    def settle(self) -> None:
        pass


class ReplaceInText:
    """Replaces a string in the text (Replace behind a fuse, and each step of the space clean-up).

    Matches are taken from the left and do not overlap. Held is the longest end of the text that begins a match, so
    fewer characters than the pattern has. A match found is final: it depends on nothing to its right.
    """

    def __init__(self, pattern: str, replacement: str) -> None:
        self._pattern = pattern
        self._replacement = replacement
        self._held = ""

    def push(self, text: str) -> str:
        text = self._held + text
        last = text.rfind(self._pattern[0], max(0, len(text) - len(self._pattern) + 1)) if text else -1
        if last < 0 and self._pattern not in text:
            self._held = ""
            return text
        *done, rest = text.split(self._pattern)
        cut = len(rest) - self._overlap(rest)
        self._held = rest[cut:]
        return self._replacement.join([*done, rest[:cut]])

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def settle(self) -> None:
        self._held = ""

    def _overlap(self, text: str) -> int:
        """Length of the longest proper beginning of the pattern that `text` ends with."""
        for length in range(min(len(self._pattern) - 1, len(text)), 0, -1):
            if text.endswith(self._pattern[:length]):
                return length
        return 0
