"""Small tokenizers of every kind that real models use, built with the `tokenizers` library."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from gateway.text.tokenizer import Tokenizer

WORDS = ["the", "own", "fox", "quick", "안", "녕", "é", "日本"]
SPECIALS = ["<s>", "</s>", "<|user|>"]


@dataclass(frozen=True)
class Toy:
    """A backend, its tokenizer_config.json and the tokenizer that the gateway makes of both."""

    backend: tokenizers.Tokenizer
    config: dict[str, object] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, bytes]:
        return {
            "tokenizer.json": self.backend.to_str().encode(),
            "tokenizer_config.json": json.dumps(self.config).encode(),
        }

    def load(self) -> Tokenizer:
        return Tokenizer(self.files)


def byte_level() -> Toy:
    """GPT-2, Llama 3, Qwen, SmolLM: every byte is a character of a visible alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "f"), ("t", "h"), ("th", "e"), ("Ġf", "o"), ("Ġfo", "x"), ("Ġ", "Ġ"), ("ð", "Ł")]
    vocab = {token: id_ for id_, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    # The second is spelled in the byte alphabet: decoders take it for the single byte 0xE9.
    backend.add_tokens([AddedToken("<tool call>"), AddedToken("é"), AddedToken("🙂")])
    return Toy(backend, {"bos_token": "<s>", "eos_token": "</s>"})


def _byte_fallback_vocab() -> dict[str, int]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens += ["▁", "▁▁", *letters, *("▁" + letter for letter in letters), *WORDS, *("▁" + word for word in WORDS)]
    return {token: id_ for id_, token in enumerate(dict.fromkeys(tokens))}


def byte_fallback() -> Toy:
    """Llama 2, Mistral, Phi-3: SentencePiece with bytes for what the vocabulary lacks; a leading space is removed."""
    backend = tokenizers.Tokenizer(models.BPE(_byte_fallback_vocab(), [], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens(["<unk>", *SPECIALS])
    backend.add_tokens([AddedToken("<tool call>"), AddedToken("▁▁▁▁", normalized=False)])
    return Toy(backend, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})


def byte_fallback_keeping_spaces() -> Toy:
    """Gemma: the same without the removal, and a special token that is spelled like a byte."""
    backend = tokenizers.Tokenizer(models.BPE(_byte_fallback_vocab(), [], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([*SPECIALS, "<0x41>"])
    return Toy(backend)


def _metaspace(scheme: str) -> Toy:
    pieces = ["<unk>", "▁", "▁a", "a", "b", "▁▁", "▁a▁b", "🙂", *WORDS, *("▁" + word for word in WORDS)]
    backend = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    backend.add_special_tokens(SPECIALS)
    return Toy(backend, {"clean_up_tokenization_spaces": scheme == "never"})


def metaspace() -> Toy:
    """T5, XLM-R: SentencePiece unigram; the marks of the first token vanish."""
    return _metaspace("always")


def metaspace_never() -> Toy:
    """The same, keeping the first token's mark, and with transformers' clean-up over the whole text."""
    return _metaspace("never")


def _word_piece(clean_up: bool) -> Toy:
    words = [
        "[UNK]",
        "do",
        "do not",
        "##n",
        "##'t",
        "n't",
        "'",
        "s",
        "'s",
        ".",
        ",",
        "##.",
        "?",
        " ",
        "##",
        "'m",
        "x",
        "n",
    ]
    backend = tokenizers.Tokenizer(
        models.WordPiece({word: id_ for id_, word in enumerate([*words, *WORDS])}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=clean_up)
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    return Toy(backend, {"clean_up_tokenization_spaces": not clean_up, "cls_token": "[CLS]"})


def word_piece() -> Toy:
    """BERT: `##` continues a word, and each token is cleaned of spaces before punctuation."""
    return _word_piece(clean_up=True)


def word_piece_cleaned_outside() -> Toy:
    """The same with the clean-up over the whole text instead: it changes text across any number of tokens."""
    return _word_piece(clean_up=False)


def end_of_word() -> Toy:
    """GPT-1, CLIP: a suffix ends a word, but not in the last token."""
    tokens = ["a", "a</w>", "</w>", "lo", "lo</w>", "a</w>b</w>", "b</"]
    backend = tokenizers.Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, []))
    backend.decoder = decoders.BPEDecoder()
    backend.add_special_tokens(SPECIALS)
    return Toy(backend)


def no_decoder() -> Toy:
    """A word-level model without a decoder: tokens joined by spaces."""
    backend = tokenizers.Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate([*WORDS, "", " "])}, "the"))
    backend.add_special_tokens(SPECIALS)
    return Toy(backend, {"clean_up_tokenization_spaces": True})


def replaced_after_fuse() -> Toy:
    """Text changed behind the fuse, where a match may lie across tokens, and a regular expression before it."""
    tokens = ["a", "b", "ab", "aa", "ba", "▁", "xx", "", " "]
    backend = tokenizers.Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, []))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex("x+"), "y"),
            decoders.Fuse(),
            decoders.Replace("aba", "-"),
            decoders.Replace("▁", " "),
            decoders.Strip(" ", 2, 0),
        ]
    )
    return Toy(backend)


def not_streamable() -> Toy:
    """A decoder with a stage that no stream can be exact for: a run of equal tokens is one (CTC)."""
    tokens = ["a", "b", "<pad>", "|"]
    backend = tokenizers.Tokenizer(models.WordLevel({token: id_ for id_, token in enumerate(tokens)}, "a"))
    backend.decoder = decoders.CTC()
    return Toy(backend)


KINDS: list[Callable[[], Toy]] = [
    byte_level,
    byte_fallback,
    byte_fallback_keeping_spaces,
    metaspace,
    metaspace_never,
    word_piece,
    word_piece_cleaned_outside,
    end_of_word,
    no_decoder,
    replaced_after_fuse,
    not_streamable,
]
