"""Tokenizers of 256 bytes and a few words, for tests that need a vocabulary and no model."""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WORDS = ["true", "false", "null", "ab", "ye", "es"]
END = 256 + len(WORDS)
# Wider than the vocabulary, as models pad theirs, and no multiple of the 32 tokens in a word of a mask.
VOCAB = END + 6


def byte_level(special: Iterable[str], words: Sequence[str] = (), merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    """Ids 0 to 255 are bytes, in the order of their ByteLevel characters; then come words and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id_ for id_, token in enumerate([*alphabet, *words])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    return made


def byte_tokenizer() -> Tokenizer:
    """Bytes, the words and ``</s>``."""
    return byte_level(["</s>"], WORDS)
