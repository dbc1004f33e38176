"""Loading checkpoints: sharded and single, fingerprints, progress, and a clear word for everything that is wrong."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_worker.model import CheckpointError, UnsupportedModelError, load_model, read_config

pytestmark = pytest.mark.model


@pytest.fixture
def folder(make_llama: Any) -> Path:
    path: Path = make_llama()
    return path


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def shard(folder: Path) -> None:
    """Splits the weights in two files behind an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for number, names in enumerate((sorted(weights)[:7], sorted(weights)[7:]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name] for name in names}, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_hold_the_same_model(folder: Path, paged_run: Any) -> None:
    single = paged_run(load_model(folder), [[5, 6, 7]], 4).step({0: 3})[0]
    shard(folder)
    assert torch.equal(paged_run(load_model(folder), [[5, 6, 7]], 4).step({0: 3})[0], single)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names files that are not in .*: model-00002-of-00002\.safetensors"):
        load_model(folder)


def test_progress_ends_at_the_whole_model(folder: Path) -> None:
    """All parameters of the checkpoint, two bytes each in bf16."""
    parameters = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    seen: list[tuple[int, int]] = []
    load_model(folder, torch.bfloat16, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2 * parameters, 2 * parameters)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_fingerprint_names_configuration_weights_and_dtype(folder: Path, tmp_path: Path) -> None:
    original = load_model(folder).fingerprint
    assert len(bytes.fromhex(original)) == 32
    assert load_model(shutil.copytree(folder, tmp_path / "copy")).fingerprint == original
    script = f"from model_worker.model import load_model; print(load_model({str(folder)!r}).fingerprint)"
    root = Path(__file__).parents[2]
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert output.stdout.strip() == original

    others = {load_model(folder, torch.bfloat16).fingerprint}
    for name, change in (("one-layer", "model.layers.1.mlp.down_proj.weight"), ("norm", "model.norm.weight")):
        tuned = shutil.copytree(folder, tmp_path / name)
        edit_weights(tuned, lambda weights, changed=change: weights[changed].mul_(1.01))
        others.add(load_model(tuned).fingerprint)
    configured = shutil.copytree(folder, tmp_path / "configured")
    edit_config(configured, rms_norm_eps=1e-6)
    others.add(load_model(configured).fingerprint)
    assert len(others | {original}) == 5


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, CheckpointError, "names GPT2LMHeadModel, but its model_type 'llama'"),
        ({"architectures": []}, CheckpointError, "names no architecture"),
        ({"hidden_act": "relu"}, UnsupportedModelError, "activation 'relu'.*supported: 'silu', 'gelu_pytorch_tanh'"),
        (
            {"rope_parameters": {"rope_type": "spiral", "factor": 2.0}},
            UnsupportedModelError,
            "rope type 'spiral'.*supported: default, linear, dynamic, llama3, yarn, longrope",
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, CheckpointError, "'linear' needs factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.05}}, CheckpointError, "3 rotary dimensions of 64"),
        ({"rope_scaling": "yarn"}, CheckpointError, "rope_scaling must be an object, got 'yarn'"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, UnsupportedModelError, r"rope type \['yarn'\] is not supported"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": "4"}},
            CheckpointError,
            "factor must be a finite number above 0, got '4'",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": "8k"}},
            CheckpointError,
            "original_max_position_embeddings must be a finite number above 0, got '8k'",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "factor": 2.0, "long_factor": 2.0, "short_factor": 1.0}},
            CheckpointError,
            "config.json makes no LlamaForCausalLM: TypeError",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}},
            CheckpointError,
            "config.json makes no LlamaForCausalLM: ZeroDivisionError",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_window_layers": None},
            CheckpointError,
            "config.json makes no Qwen2ForCausalLM: TypeError",
        ),
        ({"rms_norm_eps": "1e-5"}, CheckpointError, "rms_norm_eps must be a finite number above 0, got '1e-5'"),
        ({"hidden_act": ["silu"]}, UnsupportedModelError, r"activation \['silu'\] is not supported"),
        ({"hidden_size": None}, CheckpointError, "has no hidden_size"),
        ({"vocab_size": "many"}, CheckpointError, "vocab_size must be a positive integer, got 'many'"),
        ({"num_key_value_heads": 4}, CheckpointError, "6 attention heads cannot share 4 KV heads"),
        ({"intermediate_size": 161}, CheckpointError, r"shape \[160, 96\], config.json makes it \[161, 96\]"),
        ({"num_hidden_layers": 3}, CheckpointError, r"missing model\.layers\.2\..* and 4 more"),
        ({"num_hidden_layers": 1}, CheckpointError, r"unexpected model\.layers\.1\..* and 4 more"),
    ],
)
def test_what_the_configuration_gets_wrong_is_named(
    changes: dict[str, Any], error: type[Exception], message: str, folder: Path
) -> None:
    edit_config(folder, **changes)
    with pytest.raises(error, match=message):
        load_model(folder)


def test_missing_and_unexpected_tensors_are_named(folder: Path) -> None:
    edit_weights(folder, lambda weights: weights.update(surprise=weights.pop("model.norm.weight")))
    with pytest.raises(CheckpointError, match=r"missing model\.norm\.weight; unexpected surprise"):
        load_model(folder)


def test_what_is_not_a_model_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no such model: .*nowhere"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no config\.json in"):
        load_model(tmp_path)
    (tmp_path / "some.gguf").write_bytes(b"text")
    with pytest.raises(CheckpointError, match=r"no config.json in .*give the file itself to load some\.gguf"):
        load_model(tmp_path)
    with pytest.raises(CheckpointError, match="neither a model folder nor a GGUF file"):
        load_model(tmp_path / "some.gguf")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot read .*config.json"):
        load_model(tmp_path)
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"no weights in .*pytorch_model\.bin is a pickle"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match=r"cannot read .*model\.safetensors"):
        load_model(tmp_path)
    with pytest.raises(UnsupportedModelError, match="float64 is not supported"):
        load_model(folder, torch.float64)


def test_stop_ids_come_from_the_generation_config_first(folder: Path) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)
    edit_config(folder, eos_token_id=[3, 4], bos_token_id=9)
    assert read_config(folder).eos_token_ids == (3, 4)
    assert read_config(folder).bos_token_id == 9
    (folder / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert read_config(folder).eos_token_ids == (5,)
    edit_config(folder, eos_token_id=None)
    (folder / "generation_config.json").write_text("{}")
    assert read_config(folder).eos_token_ids == ()
    # What has no logit cannot be chosen; before the minimum of tokens it would be banned in another row's place.
    edit_config(folder, vocab_size=300, eos_token_id=[-1, 299, 300])
    assert read_config(folder).eos_token_ids == (299,)


def test_rope_of_older_configs(folder: Path) -> None:
    """transformers 4 wrote `rope_theta` and `rope_scaling` where 5 writes `rope_parameters`."""
    edit_config(folder, rope_parameters=None, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2})
    rope = read_config(folder).ropes[0]
    assert (rope.rope_type, rope.theta, rope.factor) == ("linear", 5e5, 2.0)
