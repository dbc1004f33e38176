"""SentencePiece BPE (Llama 2, Mistral, Gemma, Phi-3) out of a GGUF file, as a tokenizer of the tokenizers library.

SentencePiece merges the pair whose piece has the best score. The library merges the pair that comes first in a list, so
the list holds every way to make a piece of two others, best pieces first.
"""

from typing import NamedTuple

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from model_worker.model.errors import CheckpointError

SPACE = "▁"


class Pieces(NamedTuple):
    """What a GGUF file says about a SentencePiece model."""

    tokens: list[str]
    scores: list[float]
    types: list[int]
    adds_prefix: bool
    """A text is read as if it began with a space."""


def build_spm(pieces: Pieces) -> Tokenizer:
    """The tokenizer. Raises CheckpointError when the lists have different lengths."""
    if not len(pieces.tokens) == len(pieces.scores) == len(pieces.types):
        raise CheckpointError("the GGUF file's tokens, scores and token types have different lengths")
    unknown = next(
        (token for token, kind in zip(pieces.tokens, pieces.types, strict=True) if kind == gguf.TokenType.UNKNOWN), None
    )
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(pieces.tokens)},
            merges=_merges(pieces),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=gguf.TokenType.BYTE in pieces.types,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if pieces.adds_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, spaces])
    strip = [decoders.Strip(" ", 1, 0)] if pieces.adds_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(Regex(SPACE), " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    for token, kind in zip(pieces.tokens, pieces.types, strict=True):
        if kind in (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == gguf.TokenType.USER_DEFINED:
            # Gemma's runs of spaces are found where spaces are pieces already. A prefix would become part of the token.
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=not pieces.adds_prefix)])
    return tokenizer


def _merges(pieces: Pieces) -> list[tuple[str, str]]:
    rank_of = {token: index for index, token in enumerate(pieces.tokens)}
    found: list[tuple[float, int, int, str, str]] = []
    for token, score, kind in zip(pieces.tokens, pieces.scores, pieces.types, strict=True):
        if kind != gguf.TokenType.NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in rank_of and right in rank_of:
                found.append((-score, rank_of[left], rank_of[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]
