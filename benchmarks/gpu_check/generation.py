"""One generation from end to end: a small Llama of random weights on the device and on the CPU's plain reference."""

import contextlib
import os
from collections.abc import Iterator

import torch
from table import Table

from kernels import PoolShape, RaggedBatch, allocate_pool
from kernels.backend import VARIABLE, reset
from model_worker.model.decoder import DecoderModel
from model_worker.model.decoder_config import DecoderConfig, read_decoder_config
from model_worker.model.decoder_tensors import tensor_shapes

BLOCK_SIZE = 16
CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "architectures": ["LlamaForCausalLM"],
}


def weights(config: DecoderConfig) -> dict[str, torch.Tensor]:
    """Standard deviation 0.2: at 0.02 greedy text repeats a handful of tokens."""
    generator = torch.Generator().manual_seed(1)
    shapes = tensor_shapes(config)
    return {
        name: torch.randn(shape, generator=generator) * 0.2 if len(shape) > 1 else torch.ones(shape)
        for name, shape in shapes.items()
    }


def greedy(device: str, config: DecoderConfig, tensors: dict[str, torch.Tensor], prompts: list[list[int]]) -> list:
    """24 tokens for each prompt: prompts in one step, the second in two chunks, then decode together."""
    model = DecoderModel(config, tensors.__getitem__, torch.float32, torch.device(device))
    pool = allocate_pool(PoolShape(16, config.num_layers, 2, BLOCK_SIZE, 64, torch.float32), device)
    tables = [list(range(1, 9)), list(range(16, 8, -1))]
    texts = [list(prompt) for prompt in prompts]

    def step(parts: list[tuple[int, int, int]]) -> torch.Tensor:
        """Runs positions [start, end) of sequences; logits of each one's last."""
        positions = [p for _, start, end in parts for p in range(start, end)]
        ids = [texts[s][p] for s, start, end in parts for p in range(start, end)]
        slots = [
            tables[s][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
            for s, start, end in parts
            for p in range(start, end)
        ]
        lengths = [end - start for _, start, end in parts]
        last = torch.tensor(lengths).cumsum(0) - 1
        batch = RaggedBatch.of(lengths, [end for *_, end in parts], [tables[s] for s, *_ in parts], device)
        tensors = (torch.tensor(values, device=device) for values in (ids, positions, slots))
        return model.forward(*tensors, batch, pool, last.to(device))

    step([(0, 0, len(texts[0]) - 1), (1, 0, 20)])
    logits = step([(0, len(texts[0]) - 1, len(texts[0])), (1, 20, len(texts[1]))])
    for _ in range(24):
        for text, token in zip(texts, logits.argmax(-1).tolist(), strict=True):
            text.append(token)
        logits = step([(s, len(text) - 1, len(text)) for s, text in enumerate(texts)])
    return texts


@contextlib.contextmanager
def by_reference() -> Iterator[None]:
    """Inside, the plain torch implementation serves every device."""
    asked_for = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "reference"
    reset()
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if asked_for:
            os.environ[VARIABLE] = asked_for
        reset()


def generation(table: Table, device: str) -> None:
    config = read_decoder_config(CONFIG, {})
    tensors = weights(config)
    prompts = [torch.randint(0, 512, (length,)).tolist() for length in (5, 61)]
    ours = greedy(device, config, tensors, prompts)
    with by_reference():
        theirs = greedy("cpu", config, tensors, prompts)
    different = sum(a != b for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))
    variety = len({token for text, prompt in zip(ours, prompts, strict=True) for token in text[len(prompt) :]})
    table.bounded("generation", f"2 x 24 greedy tokens, {variety} distinct, unlike the reference's", different, 0)
