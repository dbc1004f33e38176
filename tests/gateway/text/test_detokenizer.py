"""The stream of pieces equals the full decode: for every tokenizer kind, every sequence of ids and every chunking."""

from collections.abc import Sequence
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


@pytest.mark.unit
def test_characters_spread_over_tokens_come_whole() -> None:
    """B58, byte by byte: a piece appears with the last byte of each character, the broken end only at the finish."""
    toy = TOYS["byte_level"]
    tokenizer = LOADED["byte_level"]
    one_byte = {tokenizer.token_bytes(id_): id_ for id_ in range(256)}
    text = "a🙂안👩‍💻"
    ids = [one_byte[bytes((byte,))] for byte in [*text.encode(), 0xE2, 0x82]]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([id_]) for id_ in ids]
    # 1 + 4 + 3 + 4 + 3 + 4 bytes: the joined emoji is three code points, the middle one the zero-width joiner.
    expected = ["a", *[""] * 3, "🙂", *[""] * 2, "안", *[""] * 3, "👩", *[""] * 2, "\u200d", *[""] * 3, "💻", "", ""]
    assert pieces == expected
    assert detokenizer.finish() == "\ufffd"
    assert toy.backend.decode(ids) == text + "\ufffd"


@pytest.mark.unit
def test_a_broken_byte_is_shown_when_it_is_certain() -> None:
    """0xE2 0x82 begins a character; the letter behind it proves that it never ends."""
    tokenizer = LOADED["byte_level"]
    detokenizer = Detokenizer(tokenizer)
    one_byte = {tokenizer.token_bytes(id_): id_ for id_ in range(256)}
    assert [detokenizer.push([one_byte[bytes((byte,))]]) for byte in b"\xe2\x82x"] == ["", "", "\ufffdx"]


@pytest.mark.unit
def test_a_broken_run_of_byte_tokens_takes_its_whole_characters_with_it() -> None:
    """The library reads "€" + 0xFF as four U+FFFD, so "€" cannot be shown before its run ends."""
    toy = TOYS["byte_fallback"]
    euro = ids_of(toy, "a", "<0xE2>", "<0x82>", "<0xAC>")
    broken = [*euro, *ids_of(toy, "<0xFF>", "<0x41>", "b")]
    assert stream(LOADED["byte_fallback"], [[id_] for id_ in broken]) == [
        "a", "", "", "", "\ufffd" * 4, "\ufffd", "b", ""
    ]  # fmt: skip
    assert toy.backend.decode(broken) == "a" + "\ufffd" * 5 + "b"
    whole = [*euro, *ids_of(toy, "b")]
    assert stream(LOADED["byte_fallback"], [[id_] for id_ in whole]) == ["a", "", "", "", "€b", ""]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "tokens", "pieces"),
    [
        ("byte_level", ["Ġfox", "ĠĠ", "Ġ", "f", "Ġfox"], [" fox", "  ", " ", "f", " fox"]),
        ("byte_fallback", ["▁fox", "▁▁", "▁", "fox", "▁fox"], ["fox", "  ", " ", "fox", " fox"]),
        ("byte_fallback", ["▁▁", "▁", "fox"], [" ", " ", "fox"]),
        ("metaspace", ["▁fox", "▁▁", "▁", "fox", "▁fox"], ["fox", "  ", " ", "fox", " fox"]),
        ("metaspace", ["▁▁", "▁", "fox"], ["", " ", "fox"]),
    ],
)
def test_leading_spaces_are_those_of_the_whole(name: str, tokens: list[str], pieces: list[str]) -> None:
    """B61: tokens that start with 0, 1 and 2 spaces: only the start of the whole text may lose one."""
    ids = ids_of(TOYS[name], *tokens)
    assert stream(LOADED[name], [[id_] for id_ in ids]) == [*pieces, ""]
    assert TOYS[name].backend.decode(ids) == "".join(pieces)


@pytest.mark.unit
@pytest.mark.parametrize("name", ["byte_fallback", "metaspace"])
def test_an_answer_keeps_the_space_of_its_first_word(name: str) -> None:
    the, fox, bos = ids_of(TOYS[name], "▁the", "▁fox", "<s>")
    assert stream(LOADED[name], [[fox]], context=(bos, the), skip=True) == [" fox", ""]
    # Behind a prompt of nothing but skipped tokens the answer is the beginning of the text.
    assert stream(LOADED[name], [[fox]], context=(bos,), skip=True) == ["fox", ""]


@pytest.mark.unit
@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "byte_fallback_keeping_spaces"])
def test_a_character_begun_by_the_prompt_is_shown_whole(name: str) -> None:
    """Prompt "ab€🙂" less its last byte: the answer shows the emoji, and nothing of the prompt before it."""
    tokenizer = LOADED[name]
    raw = [tokenizer.token_bytes(id_) for id_ in range(TOYS[name].backend.get_vocab_size())]
    ids = [raw.index(bytes((byte,))) for byte in "ab€🙂".encode()]
    for border, text in [(len(ids), ""), (len(ids) - 1, "🙂"), (len(ids) - 3, "🙂"), (len(ids) - 4, "🙂")]:
        assert "".join(stream(tokenizer, [ids[border:]], context=tuple(ids[:border]))) == text


@pytest.mark.unit
def test_special_and_added_tokens_inside() -> None:
    ids = ids_of(TOYS["byte_level"], "f", "<|user|>", "<tool call>", "</s>", "Ġfox")
    assert stream(LOADED["byte_level"], [ids], skip=True) == ["f<tool call> fox", ""]
    assert stream(LOADED["byte_level"], [ids], skip=False) == ["f<|user|><tool call></s> fox", ""]


@pytest.mark.unit
def test_a_decoder_no_stream_is_exact_for_is_decoded_at_the_end() -> None:
    a, b = ids_of(TOYS["not_streamable"], "a", "b")
    assert not LOADED["not_streamable"].plan.streamable
    # CTC reads a run of equal tokens as one.
    assert stream(LOADED["not_streamable"], [[a], [a], [b]]) == ["", "", "", "ab"]
    assert [name for name, tokenizer in LOADED.items() if not tokenizer.plan.streamable] == ["not_streamable"]


@pytest.mark.property
@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=24), cuts=st.lists(st.integers(0, 24), max_size=6))
def test_incremental_utf8_is_the_librarys(data: bytes, cuts: list[int]) -> None:
    """The replacement of broken bytes is the same in Python's incremental decoder and in the library."""
    tokenizer = LOADED["byte_level"]
    one_byte = {tokenizer.token_bytes(id_): id_ for id_ in range(256)}
    ids = [one_byte[bytes((byte,))] for byte in data]
    assert "".join(stream(tokenizer, chunked(ids, cuts))) == TOYS["byte_level"].backend.decode(ids)


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_demo_model_stream_is_the_full_decode(demo_tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, demo_tokenizer.vocab_size), max_size=40))
    ids += demo_tokenizer.encode(data.draw(st.text(max_size=20)))
    skip = data.draw(st.booleans())
    pieces = stream(demo_tokenizer, chunked(ids, data.draw(st.lists(st.integers(0, 60), max_size=8))), skip=skip)
    assert "".join(pieces) == demo_tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.unit
def test_each_token_is_looked_at_once() -> None:
    """The cost of a token does not grow with the stream: 10,000 ids take 10,000 look-ups and no decode."""

    class Counting(Tokenizer):
        looked_up = 0

        def token(self, id_: int) -> str | None:
            self.looked_up += 1
            return super().token(id_)

        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
            raise AssertionError("decoded again")

    tokenizer = Counting(TOYS["byte_fallback"].files)
    pieces = stream(tokenizer, [[id_ % tokenizer.vocab_size] for id_ in range(10_000)])
    assert tokenizer.looked_up == 10_000
    assert "".join(pieces) == LOADED["byte_fallback"].decode([id_ % tokenizer.vocab_size for id_ in range(10_000)])
