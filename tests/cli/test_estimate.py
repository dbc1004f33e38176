"""The arithmetic of ``octavo estimate`` against published figures and sums by hand; mistakes name their field."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.estimate import variants
from cli.estimate.built_in import SHAPES, built_in
from cli.estimate.config_file import Given, shape_of, shape_of_numbers
from cli.estimate.report import report
from cli.estimate.shape import ModelShape
from cli.estimate.sizes import human, read_memory
from cli.estimate.source import find_shape
from cli.estimate.sums import Sizing, steps
from cli.failures import CliError

pytestmark = pytest.mark.unit

KIB, MIB, GIB = 2**10, 2**20, 2**30
LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def sizing(name: str, **changes: Any) -> Sizing:
    shape = built_in(name)
    assert shape is not None
    return Sizing(
        **{"shape": shape, "dtype": "bfloat16", "block_size": 16, "context": 8192, "concurrency": 1, **changes}
    )


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [
        ("Llama-3.1-8B", 128 * KIB),
        ("Qwen3-0.6B", 2 * 28 * 8 * 128 * 2),
        ("Mistral-7B", 128 * KIB),
        ("Gemma-3-1B", 2 * 26 * 1 * 256 * 2),
        ("Gemma-3-27B", 2 * 62 * 16 * 128 * 2),
        ("OPT-13B", 800 * KIB),  # as the paper on PagedAttention counts it
        ("DeepSeek-V2", 60 * (512 + 64) * 2),
    ],
)
def test_what_is_published_of_a_token(name: str, token_bytes: int) -> None:
    assert sizing(name).token_bytes == token_bytes


def test_llama_in_50_gib() -> None:
    """A block of 16 x 128 KiB = 2 MiB; 50 GiB / 2 MiB = 25,600, one of them the null block; 8,192 / 16 = 512 each."""
    fits = sizing("llama-3.1-8b", memory=50 * GIB).fits
    assert fits is not None
    assert (fits.blocks, fits.num_blocks, fits.sequences, fits.tokens) == (25_600, 25_599, 25_599 // 512, 25_599 * 16)
    assert sizing("llama-3.1-8b").block_bytes == 2 * MIB
    # 4 sequences of 100 tokens: 7 blocks each, the last one a quarter full.
    small = sizing("llama-3.1-8b", context=100, concurrency=4)
    assert (small.num_blocks, small.pool_bytes) == (28, 29 * 2 * MIB)


def test_every_printed_sum_gives_its_value() -> None:
    """The formulas are read back and computed: what is shown is what was calculated."""
    for shape in SHAPES.values():
        asked = Sizing(shape, "bfloat16", 24, 1_000, 7, 40 * GIB)
        for step in steps(asked):
            formula = step.sum.replace(",", "")
            formula = re.sub(r"ceil\((\d+) tokens / (\d+)\)", r"(-(-\1 // \2))", formula.replace("(K V)", ""))
            formula = re.sub(r"[a-wyzA-Z]\w*", "", formula).replace(" x ", " * ")
            assert eval(formula) == step.value, (shape.name, step)


def test_less_than_two_blocks_of_memory_hold_nothing() -> None:
    fits = sizing("llama-3.1-8b", memory=2 * 2 * MIB - 1).fits
    assert fits is not None
    assert (fits.blocks, fits.num_blocks, fits.sequences, fits.tokens) == (1, 0, 0, 0)
    (usable,) = [step for step in steps(sizing("llama-3.1-8b", memory=1)) if step.what == "usable blocks"]
    assert (usable.sum, usable.value) == ("no room for the null block", 0)


@pytest.mark.parametrize("context", [1, 512, 513, 1_000, 4_096])
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_windows_keep_the_blocks_of_their_last_tokens(context: int, block_size: int) -> None:
    """Against a count of the blocks that the last 512 positions lie in, token by token."""
    asked = sizing("gemma-3-1b", context=context, block_size=block_size)
    seen = variants.windows(asked)
    assert seen is not None
    kept = len({position // block_size for position in range(max(0, context - 512), context)})
    layer_block = block_size * 2 * 1 * 256 * 2
    assert seen.needed == (22 * kept + 4 * -(-context // block_size)) * layer_block
    assert seen.allocated == asked.sequence_blocks * asked.block_bytes
    assert (seen.layers, seen.everywhere) == (22, False)  # every sixth of 26 layers sees everything: 4


def test_kinds_of_attention_side_by_side() -> None:
    rows = {row.kind: row for row in variants.by_attention(sizing("llama-3.1-8b"))}
    # 32, 8 and 1 heads of 2 x 128; MLA as 4.5 x 128, which is what DeepSeek-V2 keeps: 512 + 64.
    assert [row.layer_elements for row in rows.values()] == [8_192, 2_048, 256, 576]
    assert [kind for kind, row in rows.items() if row.own] == ["GQA"]
    deepseek = {row.kind: row.layer_elements for row in variants.by_attention(sizing("deepseek-v2"))}
    assert (deepseek["MHA"], deepseek["MLA"]) == (128 * (192 + 128), 576)


def test_fp8_halves_bfloat16_and_has_scales() -> None:
    asked = sizing("qwen3-0.6b")
    sizes = {each.dtype: each.block_bytes for each in variants.by_dtype(asked)}
    assert sizes["bfloat16"] == 2 * sizes["fp8"] == sizes["float32"] // 2
    assert variants.scale_bytes(asked) == 28 * 2 * 8 * 4


def test_amounts_of_memory() -> None:
    assert [read_memory(text) for text in ("50GiB", "1.5", "80 GB", "512mib", "1kb")] == [
        *(50 * GIB, 3 * GIB // 2, 80 * 10**9, 512 * MIB, 1_000)
    ]
    assert [human(value) for value in (0, 1_023, 2_048, 69_120, 3 * GIB, 5 * 2**40)] == [
        *("0 bytes", "1,023 bytes", "2 KiB", "67.5 KiB", "3 GiB", "5 TiB")
    ]
    for text in ("", "many", "-1", "5 gallons", "1e9", "nan"):
        with pytest.raises(CliError, match="--memory: must be an amount"):
            read_memory(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing; add it, or say it by --layers"),
        ({"num_attention_heads": None}, "num_attention_heads is missing; add it, or say it by --heads"),
        ({"hidden_size": None}, "hidden_size is missing; add it, or say it by --head-dim"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers must be a positive integer, found '32'"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be a positive integer, found 0"),
        ({"num_key_value_heads": True}, "num_key_value_heads must be a positive integer, found True"),
        ({"num_key_value_heads": [8, 4]}, "num_key_value_heads differs from layer to layer"),
        ({"num_key_value_heads": 7}, "32 attention heads cannot share 7 KV heads evenly"),
        ({"hidden_size": 4097}, "head_dim is missing, and hidden_size 4097 is no multiple of 32 heads"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be at most 65536, found 1000000000000"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
        ({"sliding_window": 9, "sliding_window_pattern": "x"}, "sliding_window_pattern must be a positive integer"),
        ({"sliding_window": 1.5}, "sliding_window must be a positive integer, found 1.5"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "all"},
            "max_window_layers must be an integer",
        ),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types has 'linear_attention'"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: the model is an encoder-decoder"),
        ({"mamba_d_state": 16}, "keeps a recurrent state"),
        ({"text_config": {"hidden_size": 8}}, "text_config: num_hidden_layers is missing"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    raw = {name: value for name, value in {**LLAMA, **changes}.items() if value is not None}
    with pytest.raises(CliError, match=re.escape(message)):
        shape_of(raw, "m", Given(), "config.json")


def test_flags_complete_a_config() -> None:
    raw = {name: value for name, value in LLAMA.items() if name != "num_hidden_layers"}
    shape = shape_of(raw, "m", Given(layers=3, kv_heads=1), "config.json")
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.kind) == (3, 1, 128, "MQA")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Given(kv_heads=8, head_dim=128), "--layers"),
        (Given(layers=32, head_dim=128), "--kv-heads"),
        (Given(layers=32, kv_heads=8), "--head-dim"),
        (Given(layers=32, kv_lora_rank=512), "--qk-rope-head-dim"),
        (Given(layers=32, heads=9, kv_heads=2, head_dim=8), "cannot share 2 KV heads evenly"),
    ],
)
def test_numbers_that_are_missing_are_named(given: Given, message: str) -> None:
    with pytest.raises(CliError, match=message):
        shape_of_numbers(given)


def test_plain_numbers_are_a_model() -> None:
    llama = shape_of_numbers(Given(layers=32, kv_heads=8, head_dim=128))
    latent = shape_of_numbers(Given(layers=60, kv_lora_rank=512, qk_rope_head_dim=64))
    assert (llama.token_bytes(2), latent.token_bytes(2)) == (128 * KIB, 69_120)
    assert variants.by_attention(Sizing(latent, "bfloat16", 16, 100, 1)) == []


def test_what_a_model_argument_means(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for place in (tmp_path, tmp_path / "config.json"):
        assert find_shape(str(place), Given()).token_bytes(2) == 128 * KIB
    assert find_shape("LLAMA-3.1-8b", Given()) is SHAPES["llama-3.1-8b"]
    for model, message in (
        ("llama-3.1-9b", "did you mean llama-3.1-8b"),
        ("zzz", "there is smollm2-135m, "),
        (str(tmp_path.parent / "nowhere"), "no model folder and no built-in shape"),
    ):
        with pytest.raises(CliError, match=message):
            find_shape(model, Given())
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CliError, match="holds no JSON object"):
        find_shape(str(tmp_path), Given())
    (tmp_path / "config.json").unlink()
    with pytest.raises(CliError, match=r"has no config\.json"):
        find_shape(str(tmp_path), Given())


def test_the_report_is_json_and_holds_the_tables() -> None:
    told = json.loads(json.dumps(report(sizing("gemma-3-4b", memory=GIB))))
    assert told["pool_bytes"] == (told["num_blocks"] + 1) * told["block_bytes"]
    assert told["by_block_size"][2]["block_size"] == 16
    assert told["by_dtype"][1]["fits"] == told["fits"]
    assert told["windows"]["layers"] == 29  # 34 layers, every sixth sees everything: 5


def test_a_shape_is_checked_whoever_makes_it() -> None:
    with pytest.raises(CliError, match="num_layers must be at least 1"):
        ModelShape("m", 0, 1, 1, 1)


# What the cli extra does not bring is not imported, even where it is installed.
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(('torch', 'numpy', 'transformers', 'huggingface_hub')))"


def octavo_without(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"{WITHOUT}; sys.argv = ['octavo', *{arguments!r}]; from cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)


def test_it_needs_no_torch() -> None:
    done = octavo_without("estimate", "llama-3.1-8b", "--memory", "50GiB")
    assert (done.returncode, done.stderr) == (0, "")
    assert "= 25,600" in done.stdout
    hub = octavo_without("estimate", "meta-llama/Llama-3.1-8B")
    assert hub.returncode == 1
    assert "pip install huggingface-hub" in hub.stderr
    assert hub.stderr.endswith("the built-in llama-3.1-8b needs no network\n")
