"""``octavo estimate`` against the pool that the worker really plans and allocates: equal to the byte."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import prod
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from tiny_checkpoints import FAMILIES, NATIVE, tiny_checkpoint

from cli.estimate import variants
from cli.estimate.config_file import Given, read_config_file
from cli.estimate.shape import KV_BYTES
from cli.estimate.sizes import read_memory
from cli.estimate.source import config_from_hub, find_shape
from cli.estimate.sums import Fits, Sizing
from cli.failures import CliError
from kernels import PoolShape, allocate_pool
from model_worker.memory import plan_memory
from model_worker.model import read_config
from model_worker.model.decoder_config import DecoderConfig
from model_worker.settings import WorkerSettings

pytestmark = pytest.mark.model

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.float8_e4m3fn}


def described(family: str, folder: Path) -> Path:
    """A folder with a family's configuration and a file without weights: sizes are read from the one alone."""
    tiny = FAMILIES[family]
    config = getattr(transformers, tiny.config)(**tiny.settings)
    config.architectures = [tiny.architecture]
    config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_is_read_as_the_worker_reads_it(family: str, tmp_path: Path) -> None:
    folder = described(family, tmp_path)
    config, shape = read_config(folder), find_shape(str(folder), Given())
    for block_size, dtype in ((16, "bfloat16"), (5, "float32"), (1, "fp8")):
        asked = Sizing(shape, dtype, block_size, context=100, concurrency=3)
        pool = PoolShape(
            asked.num_blocks, config.num_layers, config.num_kv_heads, block_size, config.head_dim, TORCH[dtype]
        )
        assert (asked.block_bytes, asked.pool_bytes) == (pool.block_bytes, pool.pool_bytes)
    if isinstance(config, DecoderConfig):
        assert family in NATIVE
        assert shape.windows == config.windows


@pytest.mark.parametrize("dtype", KV_BYTES)
def test_the_pool_is_as_large_as_said(dtype: str) -> None:
    """Counted from the tensor itself, with the null block, and for fp8 the scales."""
    shape = find_shape("qwen3-0.6b", Given())
    asked = Sizing(shape, dtype, 16, context=33, concurrency=1)
    pool = allocate_pool(PoolShape(asked.num_blocks, 28, 8, 16, 128, TORCH[dtype]))
    assert pool.nbytes == asked.pool_bytes == (3 + 1) * asked.block_bytes
    scales = torch.ones(28, 2, pool.shape[3])  # kernels take [2, KV heads] per layer
    assert variants.scale_bytes(asked) == scales.nbytes


@pytest.mark.parametrize(
    ("memory", "dtype", "block_size"), [("0.25", "float32", 16), ("100MiB", "bfloat16", 7), ("64MB", "float16", 256)]
)
def test_the_demo_model_gets_the_blocks_that_were_promised(
    demo_model: Path, memory: str, dtype: str, block_size: int
) -> None:
    amount = read_memory(memory)
    settings = {"dtype": dtype, "block_size": block_size, "kv_memory_gib": amount / 2**30}
    plan = plan_memory(WorkerSettings(model=demo_model, device="cpu", **settings))  # type: ignore[arg-type]
    shape = find_shape(str(demo_model), Given())
    assert shape.token_bytes(2) == find_shape("smollm2-135m", Given()).token_bytes(2)
    asked = Sizing(shape, dtype, block_size, context=1_000, concurrency=1, memory=amount)
    fits = Fits.of(asked, amount)
    assert fits.num_blocks == plan.shape.num_blocks
    assert asked.block_bytes == plan.shape.block_bytes
    assert plan.max_context == min(shape.max_context or 0, fits.tokens)
    assert fits.blocks * asked.block_bytes == plan.shape.pool_bytes == prod(plan.shape.dims) * KV_BYTES[dtype]


def test_a_tiny_checkpoint_from_its_folder_to_its_tensor(tmp_path: Path) -> None:
    folder = tiny_checkpoint("gemma3", tmp_path)
    plan = plan_memory(WorkerSettings(model=folder, device="cpu", dtype="bfloat16", block_size=5, num_blocks=40))
    asked = Sizing(find_shape(str(folder), Given()), "bfloat16", 5, context=50, concurrency=4)
    assert asked.num_blocks == 40
    assert allocate_pool(plan.shape).nbytes == asked.pool_bytes


def test_a_gguf_file_is_read_as_the_worker_reads_it(tmp_path: Path) -> None:
    """6 heads on 2 KV heads of 16, 3 layers: 3 x 2 x 2 x 16 elements a token."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(3)
    writer.add_embedding_length(96)
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(112)
    writer.add_context_length(256)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((199, 96), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config, shape = read_config(tmp_path / "m.gguf"), find_shape(str(tmp_path / "m.gguf"), Given())
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.max_context) == (3, 2, 16, 256)
    assert (config.num_layers, config.num_kv_heads, config.head_dim, config.max_context) == (3, 2, 16, 256)
    (tmp_path / "n.gguf").write_bytes(b"no such thing")
    with pytest.raises(CliError, match="neither a model folder nor a GGUF file"):
        find_shape(str(tmp_path / "n.gguf"), Given())


class Hub(BaseHTTPRequestHandler):
    """Has one file, config.json of owner/m."""

    content = json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}).encode()

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        there = self.path == "/owner/m/resolve/main/config.json"
        self.send_response(200 if there else 404)
        headers = {"ETag": "0" * 40, "X-Repo-Commit": "1" * 40} if there else {"X-Error-Code": "RepoNotFound"}
        for name, value in {"Content-Length": str(len(self.content) if there else 0), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)


def test_a_hub_id_is_read_from_the_hub_then_from_its_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub is on this machine. Once it is gone, what was fetched still serves, and the rest is one line."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # CI forbids calls to a hub elsewhere
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        fetched = config_from_hub("owner/m", None, endpoint, tmp_path)
        with pytest.raises(CliError, match=r"^owner/gone is no folder here, and its config\.json cannot be had"):
            config_from_hub("owner/gone", None, endpoint, tmp_path)
        server.shutdown()
        thread.join()
    assert config_from_hub("owner/m", None, endpoint, tmp_path) == fetched
    shape = read_config_file(fetched, "owner/m", Given())
    assert (shape.num_layers, shape.kind, shape.head_dim) == (2, "MHA", 16)
    with pytest.raises(CliError, match=r"cannot be had from the hub: \w+; the built-in qwen3-8b needs no network$"):
        config_from_hub("owner/Qwen3-8B-Base", None, endpoint, tmp_path)
