"""Log-probabilities in the two shapes of OpenAI's API. Pure."""

import math
from collections.abc import Sequence
from typing import Any

from gateway.logprobs import TokenLogprob, TokenLogprobs
from gateway.text.tokenizer import Tokenizer

# JSON has no infinity: what OpenAI's API says of a token that cannot come.
LEAST = -9999.0


def unconditioned(tokenizer: Tokenizer, token_id: int, hidden: frozenset[int]) -> TokenLogprobs:
    """The entry of a prompt's first token, which has no log-probability since nothing comes before it: nan here."""
    raw = tokenizer.token_bytes(token_id)
    token = TokenLogprob(token_id, raw.decode(errors="replace"), b"" if token_id in hidden else raw, math.nan)
    return TokenLogprobs(token, ())


def characters(entries: Sequence[TokenLogprobs]) -> int:
    """How many characters begin in the tokens."""
    return sum(_begun(entry.token.bytes) for entry in entries)


def chat_logprobs(entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """As a chat's choice has them."""
    content = [{**_chat_token(entry.token), "top_logprobs": [*map(_chat_token, entry.top)]} for entry in entries]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
    """As a completion's choice has them: columns.

    Args:
        entries: of consecutive tokens.
        offset: characters of the choice's text before the first of them.
    """
    offsets: list[int] = []
    for entry in entries:
        # A token that goes on with a character lies where that character began.
        offsets.append(offset - 1 if offset and _continues(entry.token.bytes) else offset)
        offset += _begun(entry.token.bytes)
    return {
        "tokens": [entry.token.text for entry in entries],
        "token_logprobs": [_number(entry.token.logprob) for entry in entries],
        "top_logprobs": [None if math.isnan(entry.token.logprob) else _by_text(entry.top) for entry in entries],
        "text_offset": offsets,
    }


def _by_text(top: Sequence[TokenLogprob]) -> dict[str, float | None]:
    """Best first. Parts of characters are all U+FFFD here: of tokens with one text the likeliest counts."""
    numbers: dict[str, float | None] = {}
    for one in top:
        numbers.setdefault(one.text, _number(one.logprob))
    return numbers


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": _number(token.logprob), "bytes": [*token.bytes]}


def _number(logprob: float) -> float | None:
    return None if math.isnan(logprob) else max(logprob, LEAST)


def _begun(utf8: bytes) -> int:
    return sum(byte & 0xC0 != 0x80 for byte in utf8)


def _continues(utf8: bytes) -> bool:
    return bool(utf8) and utf8[0] & 0xC0 == 0x80
