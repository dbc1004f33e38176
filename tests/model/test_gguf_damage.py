"""A GGUF file whose bytes are not what they should be is refused in words about the file, whatever the reader met."""

import random
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from model_worker.model.errors import CheckpointError, ModelLoadError
from model_worker.model.loader import read_config
from model_worker.tokenizer_files import tokenizer_files

pytestmark = pytest.mark.unit

WORDS_OF_LIBRARIES = re.compile(r"axis|dtype|array|codec|reshape|buffer|index \d|divisor|invalid literal|NoneType|0x")


def begun(path: Path) -> gguf.GGUFWriter:
    """The sizes of a small model with three tokens, and its embedding."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    return writer


def end(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file of which a configuration can be read."""
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    writer = begun(path)
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((32, 32), np.float32))
    end(writer)
    assert read_config(path, None).num_layers == 1
    return path.read_bytes()


def refusal(path: Path, content: bytes) -> str:
    """What is said of a file; empty when it can be read."""
    path.write_bytes(content)
    try:
        read_config(path, None)
    except ModelLoadError as error:
        return str(error)
    return ""


def test_a_file_cut_anywhere_in_its_header_is_cut_off(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    header = whole.index(b"blk.0.attn_q.weight")
    for end in range(8, header, 7):
        assert refusal(path, whole[:end]) == f"cannot read {path}: its header is damaged, or the file is cut off"
    assert "cut off" in refusal(path, whole[:-1])  # a tensor is not whole


def test_another_version_is_named(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    assert refusal(path, whole[:4] + (9).to_bytes(4, "little") + whole[8:]) == (
        f"{path} is a GGUF file of version 9; versions 2 and 3 are read"
    )


@pytest.mark.parametrize("seed", range(4))
def test_wrong_bytes_are_refused_in_our_own_words(whole: bytes, tmp_path: Path, seed: int) -> None:
    path, draw = tmp_path / "wrong.gguf", random.Random(seed)
    header = whole.index(b"blk.0.attn_q.weight") + 60
    told = set()
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 8])):
            content[draw.randrange(4, header)] = draw.choice([0, 1, 2, 127, 128, 255])
        told.add(refusal(path, bytes(content)))
    assert len(told) > 5
    assert [said for said in told if WORDS_OF_LIBRARIES.search(said)] == []


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("gpt2", lambda writer: writer.add_bos_token_id(9)),
        ("llama", lambda writer: writer.add_eos_token_id(9)),
        ("llama", lambda writer: writer.add_uint32("tokenizer.chat_template", 7)),
        ("llama", lambda writer: writer.add_uint32("tokenizer.ggml.scores", 7)),
    ],
)
def test_a_tokenizer_that_does_not_fit_together_is_refused(tmp_path: Path, kind: str, wrong: Any) -> None:
    """Three tokens: an id beyond them, and values of another type."""
    path = tmp_path / "tokenizer.gguf"
    writer = begun(path)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_merges(["a b"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 3)
    writer.add_add_bos_token(kind == "gpt2")
    wrong(writer)
    if kind == "llama" and "tokenizer.ggml.scores" not in writer.kv_data[0]:
        writer.add_token_scores([0.0] * 3)
    end(writer)
    with pytest.raises(CheckpointError, match="the GGUF file's tokenizer is damaged"):
        tokenizer_files(path)
