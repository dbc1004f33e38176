"""The stream of pieces equals the full decode: for every tokenizer kind, every sequence of ids and every chunking."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import KINDS, Toy

from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer

TOYS = {kind.__name__: kind() for kind in KINDS}
LOADED = {name: toy.load() for name, toy in TOYS.items()}


def chunked(ids: list[int], cuts: list[int]) -> list[list[int]]:
    """The ids cut at the given places; empty chunks included."""
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in pairwise(edges)]


def stream(
    tokenizer: Tokenizer, chunks: list[list[int]], *, skip: bool = False, context: tuple[int, ...] = ()
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, context=context)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.finish()]


def ids_of(toy: Toy, *tokens: str) -> list[int]:
    ids = [toy.backend.token_to_id(token) for token in tokens]
    assert None not in ids
    return ids


@pytest.mark.property
@pytest.mark.parametrize("name", TOYS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_stream_is_the_full_decode(name: str, data: st.DataObject) -> None:
    tokenizer = LOADED[name]
    # Two ids beyond the vocabulary: models pad theirs, and such ids decode to nothing.
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=24))
    skip = data.draw(st.booleans())
    pieces = stream(tokenizer, chunked(ids, data.draw(st.lists(st.integers(0, 24), max_size=6))), skip=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.property
@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "byte_fallback_keeping_spaces"])
@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=12), data=st.data())
def test_no_character_is_shown_in_parts(name: str, text: str, data: st.DataObject) -> None:
    """Bytes of any valid text, one token each: no piece holds a U+FFFD that the text does not."""
    toy, tokenizer = TOYS[name], LOADED[name]
    raw = [tokenizer.token_bytes(id_) for id_ in range(toy.backend.get_vocab_size())]
    ids = [raw.index(bytes((byte,))) for byte in text.encode()]
    pieces = stream(tokenizer, chunked(ids, data.draw(st.lists(st.integers(0, 48), max_size=6))))
    assert all(piece.count("\ufffd") <= text.count("\ufffd") for piece in pieces)
    assert "".join(pieces).lstrip(" ") == text.lstrip(" ")
