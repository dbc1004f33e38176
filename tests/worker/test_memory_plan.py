"""Sizing: what is asked for wins, what is left is measured against the machine, and every refusal names its numbers."""

import errno
import os
from pathlib import Path

import pytest
import torch

from model_worker import app, memory
from model_worker.memory import GIB, MIB, MemoryPlan, Needs, StartError, describe, kv_bytes_of_gpu, plan_memory
from model_worker.settings import WorkerSettings

pytestmark = [pytest.mark.e2e, pytest.mark.model]

# Two of K and V, 30 layers, 3 KV heads of 64, 16 tokens, float32.
BLOCK_BYTES = 2 * 30 * 3 * 64 * 16 * 4
# Tied embeddings 49,152 x 576; a layer: q and o 576 x 576, k and v 576 x 192, gate, up and down 576 x 1,536, 2 norms.
WEIGHTS = 4 * (49_152 * 576 + 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1_536 + 2 * 576) + 576)


def plan(model: Path, **settings: object) -> MemoryPlan:
    return plan_memory(WorkerSettings(model=model, device="cpu", **settings))  # type: ignore[arg-type]


def test_a_plan_adds_up_and_says_what_to_change(demo_model: Path) -> None:
    made = plan(demo_model, num_blocks=100, host_blocks=10)
    assert made.shape.block_bytes == BLOCK_BYTES
    assert made.needs.weights == WEIGHTS
    said = describe(made)
    total = (WEIGHTS + made.needs.activations + 101 * BLOCK_BYTES) / GIB
    assert f"= {total:.2f} GiB on cpu" in said
    assert "100 KV blocks (--num-blocks, --kv-memory-gib), 10 host blocks" in said


def test_blocks_follow_the_memory_unless_they_are_named(demo_model: Path) -> None:
    assert plan(demo_model).shape.num_blocks == GIB // BLOCK_BYTES - 1
    assert plan(demo_model, kv_memory_gib=0.25).shape.num_blocks == GIB // 4 // BLOCK_BYTES - 1
    assert plan(demo_model, num_blocks=7).shape.num_blocks == 7


def test_a_host_tier_holds_no_more_than_the_pool(demo_model: Path) -> None:
    assert plan(demo_model, num_blocks=20).host_blocks == 20
    assert plan(demo_model, num_blocks=2_000).host_blocks == 256 * MIB // BLOCK_BYTES
    assert plan(demo_model, num_blocks=20, host_memory_mib=0).host_blocks == 0
    assert plan(demo_model, num_blocks=20, host_blocks=50).host_blocks == 50


def test_a_gpu_gives_what_the_model_leaves() -> None:
    """B76: whatever another process holds at that moment is not counted, and a model too large is no negative pool."""
    needs = Needs(weights=16 * GIB, activations=GIB)
    for free in (80 * GIB, 76 * GIB):
        assert kv_bytes_of_gpu(free, needs) == pytest.approx(0.92 * free - 17 * GIB, rel=0.02)
    assert kv_bytes_of_gpu(17 * GIB, needs) < 0


def test_only_a_flag_that_was_given_is_named(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One block is none: the null block takes it.
    monkeypatch.setattr(memory, "_kv_memory", lambda device, needs: BLOCK_BYTES)
    for given, available in (
        ({}, f"{BLOCK_BYTES} bytes (the default, without --kv-memory-gib)"),
        ({"kv_memory_gib": 0.0001}, f"{GIB // 10_000} bytes (--kv-memory-gib 0.0001)"),
        ({"num_blocks": 0}, "--num-blocks 0"),
    ):
        with pytest.raises(StartError) as caught:
            plan(demo_model, **given)
        assert str(caught.value).endswith(f"available {available}")


def test_a_machine_too_small_is_named(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_total_memory", lambda device: WEIGHTS + 100 * BLOCK_BYTES)
    with pytest.raises(
        StartError, match=f"60 KV blocks need {61 * BLOCK_BYTES} bytes, cpu has .* weights take {WEIGHTS}"
    ):
        plan(demo_model, num_blocks=60)
    with pytest.raises(StartError, match="lower --host-blocks or --host-memory-mib"):
        plan(demo_model, num_blocks=1, host_blocks=100_000)


def test_a_watermark_as_large_as_the_pool_is_refused(demo_model: Path) -> None:
    """The manager takes no such pool, however often the worker asks."""
    assert plan(demo_model, num_blocks=5, watermark=4).shape.num_blocks == 5
    with pytest.raises(StartError, match="--watermark 5 leaves no room to admit anybody in 5 KV blocks"):
        plan(demo_model, num_blocks=5, watermark=5)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_the_smallest_pools_take_a_prompt_of_one_token(demo_model: Path, num_blocks: int) -> None:
    """B77: one or two blocks are few, and enough for a prompt and an answer."""
    assert plan(demo_model, num_blocks=num_blocks).max_context == 16 * num_blocks


def test_no_block_at_all_is_refused_with_the_bytes(demo_model: Path) -> None:
    with pytest.raises(StartError, match=f"needed {2 * BLOCK_BYTES} bytes .* available --num-blocks 0"):
        plan(demo_model, num_blocks=0)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("meta", "must be auto, cpu, cuda or cuda:N"),
        ("cuda:1", "torch sees 1, counted from 0"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch, device: str, reason: str
) -> None:
    """On a machine with one GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(StartError, match=f"--device {device}: {reason}"):
        plan_memory(WorkerSettings(model=demo_model, device=device))


def test_a_pool_that_cannot_be_mapped_is_said_with_what_to_change(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))  # as a mapping beyond a limit of the process does

    monkeypatch.setattr(app, "load_model", lambda *_, **__: None)
    monkeypatch.setattr(app, "allocate_pool", refuse)
    made = plan(demo_model, num_blocks=4)
    with pytest.raises(StartError, match=f"no memory for {5 * BLOCK_BYTES} bytes of KV blocks, lower --num-blocks"):
        app._load(WorkerSettings(model=demo_model, threads=torch.get_num_threads()), made)
