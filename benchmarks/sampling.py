"""What sampling costs beside the decode step that it follows.

    python benchmarks/sampling.py MODEL_FOLDER [--threads 2] [--repeats 9] [--context 256] [--cpu-time]

For each batch size one decode step of the model gives the logits, and is the measure: every line is the sampler's time
on those logits, in milliseconds and in percent of the step, taken in turns with it. Contexts are pieces of English
text, since it is a model's certainty that decides how many tokens are left to sort. On a shared machine only the
percentages mean anything; --cpu-time counts the processor time of all threads instead of the clock.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from tokenizers import Tokenizer
from torch import Tensor

from kernels import PoolShape, RaggedBatch, allocate_pool
from model_worker.model.loader import load_model, read_config
from model_worker.sampling.params import SamplingParams, StopConditions
from model_worker.sampling.sampler import Sampler
from model_worker.sampling.state import RowState

BLOCK = 16
PENALISED = SamplingParams(0, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.2)
KINDS = {
    "greedy": SamplingParams(0),
    "temperature": SamplingParams(0.8),
    "top-k 50, top-p 0.95": SamplingParams(0.8, top_k=50, top_p=0.95),
    "top-p 0.95": SamplingParams(0.8, top_p=0.95),
    "min-p 0.05": SamplingParams(0.8, min_p=0.05),
    "typical-p 0.95": SamplingParams(0.8, typical_p=0.95),
    "greedy, penalties": PENALISED,
    "greedy, 5 log-probabilities": SamplingParams(0, top_logprobs=5),
    "everything": replace(
        PENALISED,
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        min_p=0.01,
        typical_p=0.95,
        logit_bias=tuple((token, 0.5) for token in range(300)),
        bad_words=((11,), (12, 13)),
        top_logprobs=5,
    ),
}


@dataclass
class Row:
    """A sequence as the sampler sees it."""

    sampling: SamplingParams
    stop: StopConditions
    tokens: list[int]
    prompt_length: int
    sampler_state: RowState | None = None


class DecodeStep:
    """A decode step of sequences of ``context`` tokens each."""

    def __init__(self, folder: Path, context: int) -> None:
        self.config = read_config(folder)
        self.context = context
        self._model = load_model(folder, torch.float32, torch.device("cpu")).model
        text = (Path(__file__).resolve().parents[1] / "LICENSE").read_text()
        self._text: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids

    def tokens(self, row: int) -> list[int]:
        """The context of a row: a piece of the text."""
        start = 50 * row % (len(self._text) - self.context)
        return self._text[start : start + self.context]

    def prepare(self, batch: int) -> Callable[[], Tensor]:
        """A call that runs the step and gives its logits; the contexts are in the pool already."""
        config, last = self.config, self.context - 1
        blocks = -(-self.context // BLOCK)
        shape = PoolShape(batch * blocks, config.num_layers, config.num_kv_heads, BLOCK, config.head_dim, torch.float32)
        pool = allocate_pool(shape, torch.device("cpu"))
        tables = [list(range(1 + row * blocks, 1 + (row + 1) * blocks)) for row in range(batch)]
        for row, table in enumerate(tables):
            self._forward(pool, [table], [self.tokens(row)], 0)
        ids = [self.tokens(row)[last:] for row in range(batch)]
        return lambda: self._forward(pool, tables, ids, last)

    def _forward(self, pool: Tensor, tables: list[list[int]], ids: list[list[int]], start: int) -> Tensor:
        """The logits of each row's last token; its tokens begin at position ``start``."""
        rows, count = len(ids), len(ids[0])
        positions = torch.arange(start, start + count).repeat(rows)
        table = torch.tensor(tables).repeat_interleave(count, dim=0)
        slots = table.gather(1, (positions // BLOCK).unsqueeze(1)).squeeze(1) * BLOCK + positions % BLOCK
        ragged = RaggedBatch.of([count] * rows, [start + count] * rows, tables, torch.device("cpu"))
        flat = torch.tensor(ids).view(-1)
        return self._model.forward(flat, positions, slots, ragged, pool, torch.arange(1, rows + 1) * count - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    step = DecodeStep(options.model, options.context)
    print(
        f"{platform.processor() or platform.machine()}, {options.threads} threads, vocabulary {step.config.vocab_size}"
    )
    with torch.inference_mode():
        for batch in (1, 16, 32):
            table(step, batch, options.repeats, clock)


def table(step: DecodeStep, batch: int, repeats: int, clock: Callable[[], float]) -> None:
    """Print the lines of one batch size."""
    forward, sampler = step.prepare(batch), Sampler()
    rows = {
        name: [Row(params, StopConditions(), step.tokens(row), step.context - 50) for row in range(batch)]
        for name, params in KINDS.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in ("step", *KINDS)}
    for _ in range(repeats + 1):
        began = clock()
        logits = forward()
        taken["step"].append(clock() - began)
        for name in KINDS:
            own = logits.clone()
            began = clock()
            sampled = sampler.sample(own, rows[name])
            taken[name].append(clock() - began)
            for row, one in zip(rows[name], sampled, strict=True):
                row.tokens.append(one.token)
    # The first turn warms up; the fastest third is what the machine does when it is left alone.
    milliseconds = {name: 1e3 * sorted(seconds[1:])[repeats // 3] for name, seconds in taken.items()}
    print(f"batch {batch}: a decode step takes {milliseconds['step']:.2f} ms")
    for name in KINDS:
        print(f"  {name:30} {milliseconds[name]:7.3f} ms {100 * milliseconds[name] / milliseconds['step']:6.1f} %")


if __name__ == "__main__":
    main()
