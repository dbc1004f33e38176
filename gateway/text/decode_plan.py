"""Reads a tokenizer's decoder configuration and builds the machine that decodes it piece by piece.

A decoder is either none, one stage, or a `Sequence` of stages (`decode_stages`). A stage that is not known here, or
stands where its reading of a stream would not be exact, gives no plan: the detokenizer then decodes once, at the end,
which is always right.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, decoders

from gateway.text.decode_stages import (
    ByteFallback,
    EachToken,
    EndOfWord,
    FirstThenRest,
    ReplaceInText,
    StripLeft,
    TextStage,
    TokenStage,
    Utf8Text,
    fallback_byte,
)

# What transformers replaces in the decoded text of tokenizers that ask for clean_up_tokenization_spaces, in this order.
SPACE_CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


class _UnknownStageError(Exception):
    """The decoder holds a stage that cannot be run piece by piece."""


class Machine:
    """Decodes one stream of tokens. `push`, `finish` and `settle` are as in `decode_stages`."""

    def __init__(self, token_stages: Sequence[TokenStage], text_stages: Sequence[TextStage], utf8: Utf8Text | None):
        self._token_stages = token_stages
        self._text_stages = text_stages
        self._utf8 = utf8
        self._only_bytes = utf8 if not token_stages and not text_stages else None

    def push(self, token: str) -> str:
        if self._only_bytes is not None:  # most tokenizers
            return self._only_bytes.push(byte_level_bytes(token))
        tokens = [token]
        for stage in self._token_stages:
            tokens = [out for token in tokens for out in stage.push(token)]
        text = "".join(tokens) if self._utf8 is None else self._utf8.push(b"".join(map(byte_level_bytes, tokens)))
        for text_stage in self._text_stages:
            if not text:
                return ""
            text = text_stage.push(text)
        return text

    def finish(self) -> str:
        tokens: list[str] = []
        for stage in self._token_stages:
            tokens = [out for token in tokens for out in stage.push(token)]
            tokens += stage.finish()
        if self._utf8 is None:
            text = "".join(tokens)
        else:
            text = self._utf8.push(b"".join(map(byte_level_bytes, tokens))) + self._utf8.finish()
        for text_stage in self._text_stages:
            text = text_stage.push(text) + text_stage.finish()
        return text

    def settle(self) -> None:
        for stage in self._token_stages:
            stage.settle()
        for text_stage in self._text_stages:
            text_stage.settle()


class DecodePlan:
    """How one tokenizer's tokens become text. Immutable; `machine` starts a stream."""

    def __init__(self, decoder: Mapping[str, Any] | None, clean_up_spaces: bool):
        """`decoder` is the entry of tokenizer.json; raises nothing, see `streamable`."""
        self._clean_up = SPACE_CLEAN_UP if clean_up_spaces else ()
        self._token_stages: list[Callable[[], TokenStage]] = []
        self._text_stages: list[Callable[[], TextStage]] = []
        self._fused = False
        self._byte_level = False
        self._byte_fallback = False
        try:
            for stage in _flatten(decoder):
                self._add(stage)
            self.streamable = True
        except _UnknownStageError:
            self.streamable = False

    def machine(self) -> Machine:
        """A machine at the start of the text. Only for a streamable plan."""
        text_stages = [make() for make in self._text_stages]
        text_stages += [ReplaceInText(pattern, replacement) for pattern, replacement in self._clean_up]
        utf8 = Utf8Text() if self._byte_level else None
        return Machine([make() for make in self._token_stages], text_stages, utf8)

    def raw_bytes(self, token: str) -> bytes | None:
        """The bytes of a token that stands for bytes, not for characters; None for any other token."""
        if self._byte_level and not self._token_stages:
            return byte_level_bytes(token)
        if self._byte_fallback and (byte := fallback_byte(token)) is not None:
            return bytes((byte,))
        return None

    def _add(self, stage: Mapping[str, Any]) -> None:
        match stage:
            case {"type": "Fuse"}:
                self._fused = True
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
                if self._fused:
                    self._text_stages.append(lambda: ReplaceInText(pattern, content))
                else:
                    self._each_token(lambda token: token.replace(pattern, content))
            case {"type": "Replace", "pattern": {"Regex": str(regex)}, "content": str(content)} if not self._fused:
                replace = decoders.Replace(Regex(regex), content)
                self._each_token(lambda token: replace.decode([token]))
            case {"type": "Strip", "content": str(character), "start": int(count), "stop": 0}:
                if self._fused:
                    self._text_stages.append(lambda: StripLeft(character, count))
                else:
                    self._each_token(lambda token: StripLeft(character, count).push(token))
            case {"type": "ByteLevel"} if not self._fused:
                self._byte_level = self._fused = True
            case {"type": "ByteFallback"} if not self._fused:
                self._byte_fallback = True
                self._token_stages.append(ByteFallback)
            case {"type": "Metaspace", "replacement": str(mark)} if not self._fused:
                # In the first token every mark vanishes, not only the leading one.
                first = " " if stage.get("prepend_scheme", "always") == "never" else ""
                self._first_then_rest(lambda token: token.replace(mark, first), lambda token: token.replace(mark, " "))
            case {"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(cleanup)} if not self._fused:
                # The clean-up works within a token, so one token behind another shows how it reads inside a text.
                decoder = decoders.WordPiece(prefix=prefix, cleanup=cleanup)
                self._first_then_rest(
                    lambda token: decoder.decode([token]), lambda token: decoder.decode(["x", token])[1:]
                )
            case {"type": "BPEDecoder", "suffix": str(suffix)} if suffix and not self._fused:
                self._token_stages.append(lambda: EndOfWord(suffix))
            case {"type": "Join"}:
                self._first_then_rest(lambda token: token, lambda token: " " + token)
            case _:
                raise _UnknownStageError

    def _each_token(self, convert: Callable[[str], str]) -> None:
        self._token_stages.append(lambda: EachToken(convert))

    def _first_then_rest(self, first: Callable[[str], str], rest: Callable[[str], str]) -> None:
        self._token_stages.append(lambda: FirstThenRest(first, rest))


def _flatten(decoder: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    """The stages in order; tokenizers without a decoder join the tokens with spaces."""
    match decoder:
        case None:
            yield {"type": "Join"}
        case {"type": "Sequence", "decoders": list(stages)}:
            for stage in stages:
                yield from _flatten(stage)
        case _:
            yield decoder


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies: printable Latin-1 is itself, the other 68 bytes count up from 256.

    This is the table of GPT-2 (Radford et al. 2019), which gives every byte a visible character.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(256 + offset): byte for offset, byte in enumerate(hidden)})
    return alphabet


_BYTE_OF = _byte_alphabet()


# As many as the largest vocabularies hold that are in use at once.
@functools.lru_cache(maxsize=1 << 18)
def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token. One with a character outside the alphabet (an added token) is its UTF-8."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
