"""Tiny random-weight Llamas, and paged runs of them in any arrangement of chunks and blocks."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kernels import PoolShape, RaggedBatch, allocate_pool
from model_worker.model import LoadedModel

MakeLlama = Callable[..., Path]


@pytest.fixture(scope="session")
def make_llama(tmp_path_factory: pytest.TempPathFactory) -> MakeLlama:
    """Saves a 2-layer Llama (6 heads, 2 KV heads, head dim 64) with the given changes to its configuration.

    initializer_range 0.2: at the usual 0.02 every logit is nearly the same and a wrong model would pass.
    """

    def make(**changes: Any) -> Path:
        settings: dict[str, Any] = {
            "hidden_size": 96,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "vocab_size": 211,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "initializer_range": 0.2,
            "tie_word_embeddings": False,
            **changes,
        }
        torch.manual_seed(7)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.uniform_(0.5, 1.5)
                elif name.endswith("bias"):
                    parameter.uniform_(-0.5, 0.5)
        folder = tmp_path_factory.mktemp("llama")
        model.save_pretrained(folder)
        return folder

    return make


class PagedRun:
    """Sequences with shuffled block tables over one pool, computed step by step in whatever chunks a test names."""

    def __init__(self, loaded: LoadedModel, sequences: Sequence[Sequence[int]], block_size: int) -> None:
        self._loaded = loaded
        self._sequences = sequences
        self._block_size = block_size
        self._computed = [0] * len(sequences)
        config = loaded.config
        needed = [-(-len(ids) // block_size) for ids in sequences]
        ids = list(range(1, sum(needed) + 4))
        random.Random(3).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(count)] for count in needed]
        shape = PoolShape(
            sum(needed) + 3, config.num_layers, config.num_kv_heads, block_size, config.head_dim, loaded.dtype
        )
        self.pool = allocate_pool(shape).fill_(float("nan"))

    def inputs(self, chunk_of: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, RaggedBatch]:
        """Token ids, positions, slots and batch of a step over the next `chunk_of[i]` tokens of each sequence i."""
        tokens, positions, slots, contexts = [], [], [], []
        for sequence, chunk in chunk_of.items():
            start = self._computed[sequence]
            self._computed[sequence] += chunk
            contexts.append(start + chunk)
            for position in range(start, start + chunk):
                tokens.append(self._sequences[sequence][position])
                positions.append(position)
                block = self.tables[sequence][position // self._block_size]
                slots.append(block * self._block_size + position % self._block_size)
        batch = RaggedBatch.of(list(chunk_of.values()), contexts, [self.tables[sequence] for sequence in chunk_of])
        return torch.tensor(tokens), torch.tensor(positions), torch.tensor(slots), batch

    def step(self, chunk_of: dict[int, int]) -> dict[int, torch.Tensor]:
        """Computes the next tokens of each sequence; all their logits, [chunk, vocab] each."""
        everywhere = torch.arange(sum(chunk_of.values()))
        logits = self._loaded.model.forward(*self.inputs(chunk_of), self.pool, everywhere)
        return dict(zip(chunk_of, logits.split(list(chunk_of.values())), strict=True))

    def in_chunks(self, schedule: Sequence[dict[int, int]]) -> list[torch.Tensor]:
        """All steps of a schedule; the logits of each whole sequence, [tokens, vocab]."""
        pieces: list[list[torch.Tensor]] = [[] for _ in self._sequences]
        for chunk_of in schedule:
            for sequence, logits in self.step(chunk_of).items():
                pieces[sequence].append(logits)
        return [torch.cat(piece) for piece in pieces]


@pytest.fixture
def paged_run() -> type[PagedRun]:
    return PagedRun
