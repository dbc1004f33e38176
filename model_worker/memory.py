"""What is loaded where, decided from the model's configuration before anything is loaded."""

import os
from dataclasses import dataclass
from math import prod

import torch

from kernels import PoolShape
from model_worker.model.config import ModelConfig
from model_worker.model.loader import DTYPES, local_model, open_checkpoint, read_config
from model_worker.settings import WorkerSettings

MIB = 1024**2
GIB = 1024**3


# Of a GPU's free memory; the rest is the allocator's, the driver's and the kernels' own.
GPU_SHARE = 0.92
# Hidden states, projections, gate and up of a layer, in widths of the model, alive at once for every token of a step.
WIDTHS_PER_TOKEN = 16
# Logits, and what the sampler makes of them, in float32 per row.
LOGITS_PER_ROW = 3


class StartError(Exception):
    """The worker cannot start; one line that says why and what to change."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What is loaded where, decided before anything is.

    Attributes:
        needs: what the device holds beside the pool.
        host_blocks: blocks of the host tier; 0 for none.
    """

    config: ModelConfig
    shape: PoolShape
    needs: "Needs"
    host_blocks: int
    device: torch.device
    dtype: torch.dtype
    dtype_name: str
    max_context: int


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on the device beside the KV pool.

    Attributes:
        weights: all tensors in the type they are loaded in; quantised ones take less.
        activations: an estimate for a full step.
        graphs: an estimate for what CUDA graphs keep: the activations of the largest decode batch, once for all.
    """

    weights: int
    activations: int
    graphs: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.graphs

    @classmethod
    def of(cls, settings: WorkerSettings, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> "Needs":
        with open_checkpoint(local_model(settings.model)) as checkpoint:
            weights = sum(map(prod, checkpoint.shapes().values())) * dtype.itemsize
        width = config.num_heads * config.head_dim
        per_token = width * WIDTHS_PER_TOKEN * dtype.itemsize
        logits = settings.max_sequences * config.vocab_size * torch.float32.itemsize
        captured = device.type == "cuda" and settings.cuda_graphs
        graphs = settings.max_sequences * per_token + logits if captured else 0
        return cls(weights, settings.max_batch_tokens * per_token + LOGITS_PER_ROW * logits, graphs)


def kv_bytes_of_gpu(free: int, needs: Needs) -> int:
    """Bytes for KV blocks on a GPU with ``free`` bytes before the model is loaded; not positive when there are none."""
    return int(free * GPU_SHARE) - needs.total


def describe(plan: MemoryPlan) -> str:
    """The sum of a plan, and what to change, in one line."""
    needs = plan.needs
    parts = {"weights": needs.weights, "activations": needs.activations, "graphs": needs.graphs}
    parts = {name: size for name, size in parts.items() if size} | {"KV": plan.shape.pool_bytes}
    told = " + ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    host = plan.host_blocks * plan.shape.block_bytes / GIB
    return (
        f"memory: {told} = {sum(parts.values()) / GIB:.2f} GiB on {plan.device}, host tier {host:.2f} GiB; "
        f"{plan.shape.num_blocks} KV blocks (--num-blocks, --kv-memory-gib), {plan.host_blocks} host blocks "
        "(--host-blocks, --host-memory-mib)"
    )


def plan_memory(settings: WorkerSettings) -> MemoryPlan:
    """Size the pool from the model's configuration alone.

    Raises:
        StartError: not even one block fits, or the device does not exist.
        ModelLoadError: the model cannot be read.
    """
    config = read_config(settings.model, settings.max_context)
    device = _device(settings.device)
    name = settings.dtype
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    dtype = DTYPES[name]

    def shape(num_blocks: int) -> PoolShape:
        return PoolShape(
            num_blocks, config.num_layers, config.num_kv_heads, settings.block_size, config.head_dim, dtype
        )

    block_bytes = shape(1).block_bytes
    needs = Needs.of(settings, config, dtype, device)
    if settings.num_blocks is not None:
        num_blocks = settings.num_blocks
        available = f"--num-blocks {num_blocks}"
    else:
        memory = int(settings.kv_memory_gib * GIB) if settings.kv_memory_gib else _kv_memory(device, needs)
        num_blocks = memory // block_bytes - 1  # the null block takes one
        available = f"{memory} bytes ({_whose_word(settings, device)})"
    if num_blocks < 1:
        raise StartError(
            f"no room for KV blocks: needed {2 * block_bytes} bytes for the null block and one block of "
            f"{settings.block_size} tokens, available {available}"
        )
    if settings.watermark >= num_blocks:
        raise StartError(
            f"--watermark {settings.watermark} leaves no room to admit anybody in {num_blocks} KV blocks: "
            "lower it, or raise --num-blocks"
        )
    machine = _total_memory(device)
    if (num_blocks + 1) * block_bytes + needs.total > machine:
        raise StartError(
            f"{num_blocks} KV blocks need {(num_blocks + 1) * block_bytes} bytes, {device} has {machine}, of which "
            f"weights take {needs.weights} and activations {needs.activations}: lower --num-blocks or --kv-memory-gib"
        )
    host_blocks = settings.host_blocks
    if host_blocks is None:
        host_blocks = min(num_blocks, settings.host_memory_mib * MIB // block_bytes)
    if host_blocks * block_bytes > (memory := _total_memory(torch.device("cpu"))):
        raise StartError(
            f"{host_blocks} host blocks need {host_blocks * block_bytes} bytes, the host has {memory}: "
            "lower --host-blocks or --host-memory-mib"
        )
    if settings.max_sequences > settings.max_batch_tokens:
        raise StartError(
            f"--max-sequences {settings.max_sequences} exceeds --max-batch-tokens {settings.max_batch_tokens}: "
            "every running sequence takes at least one token of a step"
        )
    max_context = min(settings.max_context or config.max_context, config.max_context, num_blocks * settings.block_size)
    if max_context < 2:
        raise StartError(f"a context of {max_context} token has no room for a prompt and an answer: raise --num-blocks")
    return MemoryPlan(config, shape(num_blocks), needs, host_blocks, device, dtype, name, max_context)


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise StartError(f"--device {wanted}: {str(error).splitlines()[0]}") from error
    if device.type not in ("cpu", "cuda"):
        raise StartError(f"--device {wanted}: must be auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StartError(f"--device {wanted}: torch {torch.__version__} sees no CUDA device")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise StartError(f"--device {wanted}: torch sees {count}, counted from 0")
    return device


def _kv_memory(device: torch.device, needs: Needs) -> int:
    """Bytes for KV blocks when nobody said how many."""
    if device.type == "cuda":
        return kv_bytes_of_gpu(torch.cuda.mem_get_info(device)[0], needs)
    return GIB


def _whose_word(settings: WorkerSettings, device: torch.device) -> str:
    """Why there is as much memory for KV blocks as there is."""
    if settings.kv_memory_gib:
        return f"--kv-memory-gib {settings.kv_memory_gib:g}"
    if device.type == "cuda":
        return f"what the model leaves on {device}"
    return "the default, without --kv-memory-gib"


def _total_memory(device: torch.device) -> int:
    """Bytes the device has, used or not."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
