"""Where the time of one step goes, against what the machine can do at most.

    python benchmarks/step_profile.py --model models/smollm2 [--dtype bfloat16] [--weights int8] [--threads 2]
                                      [--steps 1,16,32,prefill] [--repeats 5] [--cpu-time]

The layers run operation by operation, each timed; beside their sum stands the step as the worker runs it, with all
layers in one call. An operation's limit is the larger of its bytes over the machine's reading rate and its operations
over the machine's rate of multiply-adds, both measured in the same process (machine_limits.py).

On a busy machine take --cpu-time with --threads 1: processor time does not count what neighbours took of the core, but
with several threads it counts their waiting for each other.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from machine_limits import Limits, measure

import kernels
from kernels import PackedLinear, PoolShape, RaggedBatch, reference
from kernels.backend import operation
from model_worker.model import decoder, load_model
from model_worker.model.decoder import DecoderModel
from model_worker.model.loader import DTYPES

CONTEXT, PROMPT, BLOCK = 256, 1536, 16


@dataclass
class Kind:
    """All calls of one kind of operation in one step."""

    calls: int = 0
    seconds: float = 0.0
    num_bytes: float = 0.0
    flops: float = 0.0


@dataclass
class Profile:
    clock: Callable[[], float]
    batch: RaggedBatch
    pool: torch.Tensor
    names: dict[int, str]
    """What the packed weights at an address are."""
    kinds: dict[str, Kind] = field(default_factory=lambda: defaultdict(Kind))

    def timed(self, name: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            started = self.clock()
            result = implementation(*arguments, **options)
            seconds = self.clock() - started
            kind = self.kinds[self.kind_of(name, arguments)]
            num_bytes, flops = self.work_of(name, arguments)
            kind.calls, kind.seconds = kind.calls + 1, kind.seconds + seconds
            kind.num_bytes, kind.flops = kind.num_bytes + num_bytes, kind.flops + flops
            return result

        return call

    def kind_of(self, name: str, arguments: tuple[Any, ...]) -> str:
        return self.names[arguments[1].weight.data_ptr()] if name == "linear" else name

    def work_of(self, name: str, arguments: tuple[Any, ...]) -> tuple[float, float]:
        """Bytes that must come from memory, and floating-point operations. Activations stay in the caches."""
        if name == "linear":
            values, packed = arguments[:2]
            width = packed.out_features * (2 if packed.gated else 1)
            return packed.weight.nbytes, 2.0 * values.shape[0] * packed.in_features * width
        if name == "paged_attention":
            query = arguments[0]
            row = 2 * self.pool.shape[3] * self.pool.shape[5] * self.pool.element_size()
            contexts, queries = self.batch.host_context_lengths, self.batch.host_query_lengths
            # Query token j of n sees the context but for the n - 1 - j tokens behind it.
            seen = sum(n * context - n * (n - 1) / 2 for n, context in zip(queries, contexts, strict=True))
            return row * sum(contexts), 4.0 * query.shape[1] * query.shape[2] * seen
        return 0.0, 0.0


@contextmanager
def one_by_one(profile: Profile) -> Any:
    """Within, the model's operations are timed, and its layers run operation by operation."""
    names = ("add_rms_norm", "linear", "write_rotated_kv", "paged_attention", "embedding")
    timed = {name: profile.timed(name, operation(name, "cpu")) for name in names}
    timed["decoder_layers"] = reference.decoder_layers
    places, before = (reference.decoder, reference.model), decoder.decoder_logits
    public = reference.decoder.operation
    for place in places:
        place.operation = lambda name, device: timed[name]
    decoder.decoder_logits = reference.decoder_logits
    try:
        yield
    finally:
        for place in places:
            place.operation = public
        decoder.decoder_logits = before


def weight_names(model: DecoderModel) -> dict[int, str]:
    """By address; a tied output is the output's, since the embedding reads single rows."""
    named: dict[int, str] = {}
    for layer in model._stack.layers:
        parts: dict[str, PackedLinear] = {"qkv": layer.qkv, "attention out": layer.attention_out}
        if isinstance(layer.ffn, kernels.GatedFeedForward):
            parts |= {"gate and up": layer.ffn.gate_up, "down": layer.ffn.down}
        named |= {packed.weight.data_ptr(): name for name, packed in parts.items()}
    return named | {model._ends.output.weight.data_ptr(): "logits"}


def profile_step(model: DecoderModel, batch_size: int, options: argparse.Namespace, limits: Limits) -> None:
    """`batch_size` decodes in contexts of CONTEXT, or with 0 one prompt of PROMPT."""
    config, clock = model.config, _clock(options)
    sequences, tokens, context = (batch_size, 1, CONTEXT) if batch_size else (1, PROMPT, PROMPT)
    blocks = -(-context // BLOCK)
    shape = PoolShape(
        sequences * blocks, config.num_layers, config.num_kv_heads, BLOCK, config.head_dim, DTYPES[options.dtype]
    )
    pool = kernels.allocate_pool(shape).normal_()
    tables = (torch.randperm(sequences * blocks) + 1).to(torch.int32).view(sequences, blocks)
    positions = torch.arange(context - tokens, context).repeat(sequences)
    slots = (tables.long().repeat_interleave(tokens, 0).gather(1, positions[:, None] // BLOCK)).flatten() * BLOCK
    slots += positions % BLOCK
    ids = torch.randint(config.vocab_size, (sequences * tokens,))
    logits_at = torch.arange(1, sequences + 1) * tokens - 1

    def step(batch: RaggedBatch) -> float:
        started = clock()
        model.forward(ids, positions, slots, batch, pool, logits_at)
        return clock() - started

    def fresh() -> RaggedBatch:
        return RaggedBatch.of([tokens] * sequences, [context] * sequences, tables)

    names, best, whole, parts = weight_names(model), None, float("inf"), float("inf")
    step(fresh())
    for _ in range(options.repeats):
        whole = min(whole, step(fresh()))
        batch = fresh()
        profile = Profile(clock, batch, pool, names)
        with one_by_one(profile):
            seconds = step(batch)
        if seconds < parts:
            best, parts = profile, seconds
    assert best is not None
    show(f"batch {batch_size}, context {CONTEXT}" if batch_size else f"prompt of {PROMPT}", best, limits)
    limit = sum(max(one.num_bytes / limits.huge_pages, one.flops / limits.flops) for one in best.kinds.values())
    print(
        f"  operation by operation {parts * 1e3:.2f} ms; as the worker runs it {whole * 1e3:.2f} ms = "
        f"{ids.numel() / whole:.0f} tokens/s, {limit / whole:.0%} of the limit of {limit * 1e3:.2f} ms"
    )


def show(title: str, profile: Profile, limits: Limits) -> None:
    print(f"\n{title}\n  {'':18}{'calls':>6}{'ms':>9}{'share':>7}{'MB':>8}{'GFLOP':>8}{'limit':>9}{'of it':>7}")
    total = sum(one.seconds for one in profile.kinds.values())
    for name, one in sorted(profile.kinds.items(), key=lambda item: -item[1].seconds):
        limit = max(one.num_bytes / limits.huge_pages, one.flops / limits.flops)
        reached = f"{limit / one.seconds:7.0%}" if limit else f"{'':7}"
        print(
            f"  {name:18}{one.calls:6}{one.seconds * 1e3:9.2f}{one.seconds / total:7.0%}{one.num_bytes / 1e6:8.1f}"
            f"{one.flops / 1e9:8.2f}{limit * 1e3:9.2f}{reached}"
        )


def _clock(options: argparse.Namespace) -> Callable[[], float]:
    return (lambda: time.process_time() / options.threads) if options.cpu_time else time.perf_counter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--weights", default=None, choices=("int8", "int4"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", default="1,16,32,prefill", help="batches of decodes, and prefill")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="processor time per thread instead of elapsed time")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    limits = measure(options.threads, options.cpu_time)
    print(f"{kernels.backend()}; load {os.getloadavg()[0]:.1f}\n{limits}")
    model = load_model(options.model, DTYPES[options.dtype], quantization=options.weights).model
    if not isinstance(model, DecoderModel):
        raise SystemExit(f"{options.model}: no native model, whose operations could be told apart")
    for part in options.steps.split(","):
        profile_step(model, 0 if part == "prefill" else int(part), options, limits)


if __name__ == "__main__":
    main()
