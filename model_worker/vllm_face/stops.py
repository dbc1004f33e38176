"""Stop strings: the one thing for which this face looks at text.

A caller that takes its answer whole cannot see a stop string before the end, so the engine has to: it ends the sample
with the token that completes the string. Cutting the text is left to the gateway.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from service.errors import invalid_argument

# Of all strings of a request: they are looked for behind every token.
MAX_STOP_BYTES = 1024
# A character whose first bytes lie before the tail, and tokens without text.
MARGIN_TOKENS = 8
# What a decoder puts for bytes that are no character yet.
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@dataclass(slots=True)
class StopStrings:
    """What ends the samples of one request.

    Attributes:
        strings: none empty.
        min_tokens: so many are generated whatever they say.
        skip_special_tokens: whether special tokens have no text.
    """

    tokenizer: Tokenizer
    strings: Sequence[str]
    min_tokens: int = 0
    skip_special_tokens: bool = True

    def find(self, tokens: Sequence[int], unread: int) -> tuple[int, str] | None:
        """The first stop string that one of the last ``unread`` tokens completes, and how many tokens it takes.

        Args:
            tokens: all tokens generated so far.
        """
        # A token stands for a byte at least, so this many reach back over the longest string.
        tail = max(len(string.encode()) for string in self.strings) + MARGIN_TOKENS
        for end in range(max(len(tokens) - unread, self.min_tokens) + 1, len(tokens) + 1):
            start = max(0, end - tail)
            text = self._text(tokens[start:end])
            for string in self.strings:
                if string in text:
                    # One that was complete before this token, by min_tokens, is forgiven for good.
                    known = len(self._text(tokens[start : end - 1]).rstrip(UNFINISHED))
                    if text.find(string, max(0, known + 1 - len(string))) >= 0:
                        return end, string
        return None

    def _text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), self.skip_special_tokens)


@dataclass(slots=True)
class StopReader:
    """Makes ``StopStrings`` of requests. Reads the tokenizer when one first asks; belongs to the event loop."""

    _tokenizer: Tokenizer | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self, params: Any, files: Mapping[str, bytes]) -> StopStrings | None:
        """The stop strings of ``vllm.grpc.engine.SamplingParams``; None when there are none.

        Args:
            files: the tokenizer files by name.

        Raises:
            ServiceError: INVALID_ARGUMENT, the strings are too long or there is no tokenizer to read text with.
        """
        strings = [string for string in params.stop if string]
        if not strings:
            return None
        if (size := sum(len(string.encode()) for string in strings)) > MAX_STOP_BYTES:
            raise invalid_argument("sampling_params.stop", f"{size} bytes, must be at most {MAX_STOP_BYTES} together")
        if "tokenizer.json" not in files:
            raise invalid_argument("sampling_params.stop", "this model has no tokenizer.json to find strings with")
        async with self._reading:
            if self._tokenizer is None:
                self._tokenizer = await asyncio.to_thread(_tokenizer, files["tokenizer.json"])
        return StopStrings(self._tokenizer, strings, params.min_tokens, params.skip_special_tokens)


def _tokenizer(data: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises no narrower class
        reason = f"this model's tokenizer.json cannot be read, to find strings with: {error}"
        raise invalid_argument("sampling_params.stop", reason) from error
