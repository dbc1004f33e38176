"""Tokenizer files out of a GGUF file's metadata."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model_worker.model.errors import CheckpointError, UnsupportedModelError
from model_worker.model.gguf_checkpoint import GgufCheckpoint
from model_worker.model.gguf_file import DAMAGE
from model_worker.model.gguf_spm import Pieces, build_spm


def _smollm() -> pre_tokenizers.PreTokenizer:
    # Digits first: ByteLevel's pattern alone would keep a run of digits, and the space before it, in one word.
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _words(digits: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """Contractions, words with the sign before them, runs of digits, signs with line ends, line ends, spaces."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": _smollm,
    "llama-bpe": _words(r"\p{N}{1,3}"),
    "qwen2": _words(r"\p{N}"),
}
_COMPOSED = ("qwen2",)
"""Those that read a text in its composed form (NFC)."""


def write_tokenizer(checkpoint: GgufCheckpoint, folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and, when there is a chat template, chat_template.jinja.

    Raises UnsupportedModelError for a tokenizer other than SentencePiece BPE and byte-level BPE with a known
    pre-tokenizer, CheckpointError for one that does not fit together.
    """
    try:
        _write(checkpoint, folder)
    except DAMAGE as error:
        raise CheckpointError(f"the GGUF file's tokenizer is damaged: {type(error).__name__}: {error}") from error


def _write(checkpoint: GgufCheckpoint, folder: Path) -> None:
    build_tokenizer(checkpoint).save(str(folder / "tokenizer.json"))
    tokens = _strings(checkpoint, "tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_bos(checkpoint),
        "model_max_length": checkpoint.config()["max_position_embeddings"],
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token = checkpoint.metadata(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            config[f"{role}_token"] = tokens[token]
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
    template = checkpoint.metadata("tokenizer.chat_template")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def build_tokenizer(checkpoint: GgufCheckpoint) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises UnsupportedModelError, and whatever comes of one that is damaged."""
    kind = checkpoint.metadata("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(checkpoint)
    elif kind == "llama":
        tokenizer = build_spm(_pieces(checkpoint))
    else:
        raise UnsupportedModelError(
            f"GGUF tokenizer {kind!r} is not supported; supported: 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE)"
        )
    if _adds_bos(checkpoint):
        bos = checkpoint.metadata("tokenizer.ggml.bos_token_id")
        token = _strings(checkpoint, "tokens")[bos]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, bos)])
    return tokenizer


def _byte_level(checkpoint: GgufCheckpoint) -> Tokenizer:
    pre = checkpoint.metadata("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        supported = ", ".join(PRE_TOKENIZERS)
        raise UnsupportedModelError(f"GGUF pre-tokenizer {pre!r} is not supported; supported: {supported}")
    tokens = _strings(checkpoint, "tokens")
    merges = [_pair(merge) for merge in _strings(checkpoint, "merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the library raises bare Exception for a merge whose parts are not in the vocabulary
        raise CheckpointError(f"the GGUF file's tokenizer is damaged: {error}") from error
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    types = checkpoint.metadata("tokenizer.ggml.token_type", [])
    for token, token_type in zip(tokens, types, strict=False):
        if token_type == gguf.TokenType.CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_type == gguf.TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    return tokenizer


def _pieces(checkpoint: GgufCheckpoint) -> Pieces:
    """Llama's files that say nothing of a prefix have one."""
    return Pieces(
        tokens=_strings(checkpoint, "tokens"),
        scores=list(checkpoint.metadata("tokenizer.ggml.scores", [])),
        types=list(checkpoint.metadata("tokenizer.ggml.token_type", [])),
        adds_prefix=bool(checkpoint.metadata("tokenizer.ggml.add_space_prefix", True)),
    )


def _strings(checkpoint: GgufCheckpoint, key: str) -> list[str]:
    values = checkpoint.metadata(f"tokenizer.ggml.{key}")
    if not values:
        raise CheckpointError(f"the GGUF file has no tokenizer.ggml.{key}")
    return list(values)


def _pair(merge: str) -> tuple[str, str]:
    """Byte-level tokens hold no space, so the one space parts the two."""
    left, _, right = merge.partition(" ")
    return left, right


def _adds_bos(checkpoint: GgufCheckpoint) -> bool:
    bos = checkpoint.metadata("tokenizer.ggml.bos_token_id")
    by_habit = checkpoint.metadata("tokenizer.ggml.model") == "llama"  # SentencePiece's files need not say so
    return bos is not None and bool(checkpoint.metadata("tokenizer.ggml.add_bos_token", by_habit))
