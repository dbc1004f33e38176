"""The tokenizer gives the ids and texts of transformers' AutoTokenizer on the same files, and names broken files."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import KINDS, byte_fallback, byte_level
from transformers import PreTrainedTokenizerFast

from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import TOKENIZER_FILES, Tokenizer, TokenizerError

LOADED = {kind.__name__: kind().load() for kind in KINDS}

TEXTS = [
    "",
    " ",
    "the quick own fox",
    "  the   fox\n",
    "안녕 🙂 日本 é",
    "<s>the</s> fox<|user|>",
    "<tool call> a <s>",
    "▁the 👩‍💻",
]


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
def test_encodes_and_decodes_as_transformers(kind, tmp_path: Path) -> None:
    toy = kind()
    for name, content in toy.files.items():
        (tmp_path / name).write_bytes(content)
    ours, reference = Tokenizer.from_folder(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.vocab_size == len(reference)
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == reference.encode(text, add_special_tokens=special)
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)
    everything = list(range(ours.vocab_size)) * 2
    assert ours.decode(everything) == reference.decode(everything)


@pytest.mark.model
def test_tokens_that_only_the_configuration_knows(tmp_path: Path) -> None:
    """A named token and one of added_tokens_decoder get the ids transformers gives them, and are special alike."""
    toy = byte_level()
    config = {
        "bos_token": {"__type": "AddedToken", "content": "<bos>"},
        "eos_token": "</s>",
        "extra_special_tokens": ["<extra>"],
        "added_tokens_decoder": {
            "900": {"content": "<listed>", "special": True, "normalized": False},
            "901": {"content": "<plain>", "special": False, "normalized": False},
        },
    }
    (tmp_path / "tokenizer.json").write_bytes(toy.files["tokenizer.json"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, reference = Tokenizer.from_folder(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "the<bos> fox<extra><listed></s><plain>."
    ids = ours.encode(text)
    assert ids == reference.encode(text)
    assert (
        ours.decode(ids, skip_special_tokens=True)
        == reference.decode(ids, skip_special_tokens=True)
        == "the fox<plain>."
    )
    assert ours.special_tokens == reference.special_tokens_map == {"bos_token": "<bos>", "eos_token": "</s>"}


@pytest.mark.unit
def test_post_processor_adds_bos_only_when_asked() -> None:
    tokenizer = byte_fallback().load()
    with_bos, without = tokenizer.encode("the"), tokenizer.encode("the", add_special_tokens=False)
    assert with_bos == [tokenizer.bos_token_id, *without]
    assert tokenizer.bos_token_id == 1


@pytest.mark.unit
def test_special_tokens_map_serves_older_folders() -> None:
    files = dict(byte_level().files)
    files["tokenizer_config.json"] = b'{"eos_token": "</s>"}'
    files["special_tokens_map.json"] = b'{"bos_token": {"content": "<s>"}}'
    tokenizer = Tokenizer(files)
    assert tokenizer.special_tokens == {"eos_token": "</s>", "bos_token": "<s>"}


@pytest.mark.unit
def test_end_of_sequence_ids_follow_the_order_of_generate() -> None:
    files = dict(byte_level().files)
    own = Tokenizer(files)
    assert own.eos_token_ids == (own.encode("</s>")[0],)
    files["config.json"] = b'{"eos_token_id": 7}'
    assert Tokenizer(files).eos_token_ids == (7,)
    files["generation_config.json"] = b'{"eos_token_id": [8, 9]}'
    assert Tokenizer(files).eos_token_ids == (8, 9)
    files["generation_config.json"] = b'{"eos_token_id": null}'
    assert Tokenizer(files).eos_token_ids == (7,)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.json": None}, r"tokenizer\.json is missing"),
        ({"tokenizer.json": b"{"}, r"tokenizer\.json is not a tokenizer: EOF"),
        ({"tokenizer.json": b"\xff"}, r"tokenizer\.json is not UTF-8"),
        ({"tokenizer_config.json": b"{"}, r"tokenizer_config\.json is not JSON"),
        ({"tokenizer_config.json": b"[]"}, r"tokenizer_config\.json holds no JSON object"),
        ({"tokenizer_config.json": b'{"chat_template": 3}'}, "chat_template is neither"),
        ({"tokenizer_config.json": b'{"added_tokens_decoder": {"x": {}}}'}, "added_tokens_decoder is malformed"),
        ({"generation_config.json": b'{"eos_token_id": "x"}'}, r"generation_config\.json: eos_token_id is 'x'"),
        ({"chat_template.jinja": b"\xff"}, r"chat_template\.jinja is not UTF-8"),
    ],
)
def test_broken_files_are_named(changes: dict[str, bytes | None], message: str, tmp_path: Path) -> None:
    files = {name: content for name, content in (byte_level().files | changes).items() if content is not None}
    with pytest.raises(TokenizerError, match=message):
        Tokenizer(files)
    for name, content in files.items():
        assert name in TOKENIZER_FILES
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=f"{tmp_path}: .*{message}"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.unit
def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="nowhere is not a folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")


@pytest.mark.unit
def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        byte_level().load().encode("a\ud800")


@pytest.mark.property
@pytest.mark.parametrize(
    "name", ["byte_level", "byte_fallback", "byte_fallback_keeping_spaces", "metaspace", "word_piece"]
)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_token_bytes_add_up_to_the_streamed_text(name: str, data: st.DataObject) -> None:
    """B62: behind a prompt, the bytes of the chosen tokens are the UTF-8 of the answer wherever they are UTF-8."""
    tokenizer = LOADED[name]
    chosen = st.integers(0, tokenizer.vocab_size - 1)
    texts = st.text(max_size=12).map(lambda text: tokenizer.encode(text, add_special_tokens=False))
    ids = data.draw(st.one_of(texts, st.lists(chosen, max_size=6)))
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False, context=tokenizer.encode("the"))
    text = detokenizer.push(ids) + detokenizer.finish()
    joined = b"".join(map(tokenizer.token_bytes, ids))
    try:
        assert text == joined.decode()
    except UnicodeDecodeError:
        assert "\ufffd" in text


@pytest.mark.unit
def test_bytes_of_single_tokens() -> None:
    def bytes_of(name: str, token: str) -> bytes:
        tokenizer = LOADED[name]
        return next(tokenizer.token_bytes(id_) for id_ in range(tokenizer.vocab_size) if tokenizer.token(id_) == token)

    assert bytes_of("byte_level", "Ġfox") == b" fox"
    assert bytes_of("byte_level", "ðŁ") == "🙂".encode()[:2]
    assert bytes_of("byte_level", "<tool call>") == b"<tool call>"
    assert bytes_of("byte_fallback", "<0xF0>") == b"\xf0"
    assert bytes_of("byte_fallback", "▁fox") == b" fox"
    assert bytes_of("metaspace", "▁fox") == b" fox"
    assert bytes_of("word_piece", "do") == b" do"
    assert bytes_of("word_piece", "##n") == b"n"
    assert LOADED["byte_level"].token_bytes(10**6) == b""
