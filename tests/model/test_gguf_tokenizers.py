"""Tokenizers out of GGUF files: SentencePiece's own pieces, and the words that pre-tokenizers cut."""

import io
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers

from model_worker.model import CheckpointError
from model_worker.model.gguf_spm import Pieces, build_spm
from model_worker.model.gguf_tokenizer import PRE_TOKENIZERS

pytestmark = pytest.mark.model

_LINES = [line.strip() for line in Path(__file__).read_text(encoding="utf-8").splitlines()]
# SentencePiece reads the names of special tokens as text, a tokenizer for models does not.
CORPUS = [line for line in _LINES if line and not any(name in line for name in ("<unk>", "<s>", "</s>"))]
TEXTS = [
    "the words that pre-tokenizers cut",
    "import pytest  from tokenizers",
    "a  b   c",
    " leading and trailing ",
    "unseen: 日本語 🦀 naïve",
    "x = {'a': [1, 22, 333]}",
    "",
]


def trained(**options: Any) -> Any:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces_of(processor: Any, adds_prefix: bool) -> Pieces:
    """As the public converter writes them."""
    types = []
    for index in range(processor.vocab_size()):
        if processor.is_unknown(index):
            types.append(gguf.TokenType.UNKNOWN)
        elif processor.is_control(index):
            types.append(gguf.TokenType.CONTROL)
        elif processor.is_byte(index):
            types.append(gguf.TokenType.BYTE)
        elif processor.id_to_piece(index) in ("<user>", "▁▁"):
            types.append(gguf.TokenType.USER_DEFINED)
        else:
            types.append(gguf.TokenType.NORMAL)
    tokens = [processor.id_to_piece(index) for index in range(processor.vocab_size())]
    scores = [processor.get_score(index) for index in range(processor.vocab_size())]
    return Pieces(tokens, scores, types, adds_prefix)


def test_pieces_equal_sentencepiece_with_a_prefix() -> None:
    """Llama 2, Mistral, Phi-3."""
    processor = trained(add_dummy_prefix=True)
    tokenizer = build_spm(pieces_of(processor, adds_prefix=True))
    for text in (*TEXTS, *CORPUS):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == processor.encode(text), text
        assert tokenizer.decode(ids) == processor.decode(ids)


def test_pieces_equal_sentencepiece_without_a_prefix() -> None:
    """Gemma, whose runs of spaces and tags are user-defined pieces."""
    processor = trained(add_dummy_prefix=False, user_defined_symbols=["<user>", "▁▁"])
    tokenizer = build_spm(pieces_of(processor, adds_prefix=False))
    for text in (*TEXTS, *CORPUS, "say <user>hello</user>", "<user>  <user>"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == processor.encode(text), text
        assert tokenizer.decode(ids) == processor.decode(ids)


def test_special_tokens_are_found_in_text() -> None:
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a"]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * 3]
    tokenizer = build_spm(Pieces(tokens, [0.0, 0.0, 0.0, -2.0, -3.0, -1.0], types, adds_prefix=True))
    assert tokenizer.encode("a</s>").ids == [5, 2]
    with pytest.raises(CheckpointError, match="different lengths"):
        build_spm(Pieces(tokens, [], types, adds_prefix=True))


def words(pre: str, text: str) -> list[str]:
    """What is cut, spaces as they are: byte-level spells a space Ġ and a line end Ċ."""
    cut = PRE_TOKENIZERS[pre]().pre_tokenize_str(text)
    return [word.replace("Ġ", " ").replace("Ċ", "\n") for word, _ in cut]


@pytest.mark.parametrize(("pre", "digits"), [("llama-bpe", ["123", "45"]), ("qwen2", ["1", "2", "3", "4", "5"])])
def test_words_are_cut_as_the_models_were_trained(pre: str, digits: list[str]) -> None:
    """Llama 3 reads three digits at a time, Qwen one. Signs keep the line ends behind them, words the space before."""
    expected = ["It", "'s", " ", *digits, " days", ",\n\n", "  ", " isn", "'t", " it", "?!\n"]
    assert words(pre, "It's 12345 days,\n\n   isn't it?!\n") == expected


def test_qwens_words_equal_transformers() -> None:
    reference = transformers.Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    for text in (*TEXTS, *CORPUS, "\r\n \t x", "I'LL 'Re", "e\u0301"):
        assert PRE_TOKENIZERS["qwen2"]().pre_tokenize_str(text) == reference.pre_tokenize_str(text)
