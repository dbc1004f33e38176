"""Decoding through the buffers of CUDA graphs: Triton's kernels on CPU tensors, where a graph runs its step again."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kernels import PoolShape, RaggedBatch, allocate_pool
from kernels.backend import VARIABLE, backend, reset
from model_worker.engine.decode_graphs import DecodeGraphs, Step, buckets
from model_worker.model.decoder import DecoderModel
from model_worker.model.decoder_config import read_decoder_config
from model_worker.model.decoder_tensors import tensor_shapes

pytestmark = pytest.mark.interpret

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
SIZE = 4
TABLES = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "interpret")
    reset()
    assert backend("cpu").name == "interpret"
    yield
    monkeypatch.undo()
    reset()


def run_again(captured: list[int]) -> Callable[[Step], tuple[Tensor, Callable[[], None]]]:
    """Capturing without a device: what is replayed is the step itself, into the same memory."""

    def capture(step: Step) -> tuple[Tensor, Callable[[], None]]:
        output = step()
        captured.append(len(output))

        def replay() -> None:
            output.copy_(step())

        return output, replay

    return capture


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (4, [1, 2, 4]), (5, [1, 2, 4, 5]), (20, [1, 2, 4, 8, 16, 20]), (8, [1, 2, 4, 8])]
)
def test_buckets_end_with_the_largest_batch(most: int, sizes: list[int]) -> None:
    assert buckets(most) == sizes


@torch.inference_mode()
def test_padded_batches_give_the_logits_of_plain_ones_and_touch_only_the_null_block() -> None:
    config = read_decoder_config(CONFIG, {}, None)
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.2 if len(shape) > 1 else torch.ones(shape)
        for name, shape in tensor_shapes(config).items()
    }
    model = DecoderModel(config, weights.__getitem__, torch.float32, torch.device("cpu"))
    shape = PoolShape(9, 1, 1, SIZE, 16, torch.float32)
    plain, graphed = allocate_pool(shape, "cpu"), allocate_pool(shape, "cpu")
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5, 8], [7]]

    def forward(pool: Tensor, parts: list[tuple[int, int, int]], ids: list[list[int]]) -> Tensor:
        positions = [at for _, start, end in parts for at in range(start, end)]
        tokens = [ids[one][at] for one, start, end in parts for at in range(start, end)]
        slots = [TABLES[one][at // SIZE] * SIZE + at % SIZE for one, start, end in parts for at in range(start, end)]
        lengths = [end - start for _, start, end in parts]
        batch = RaggedBatch.of(lengths, [end for *_, end in parts], [TABLES[one] for one, *_ in parts], "cpu")
        last = torch.tensor(lengths).cumsum(0) - 1
        return model.forward(*(torch.tensor(values) for values in (tokens, positions, slots)), batch, pool, last)

    for pool in (plain, graphed):
        forward(pool, [(one, 0, len(ids)) for one, ids in enumerate(prompts)], prompts)
    captured: list[int] = []
    graphs = DecodeGraphs(model, graphed, 4, 3, SIZE, run_again(captured))
    assert graphs.takes(4, 3)
    assert not graphs.takes(5, 3)
    assert not graphs.takes(1, 4)
    # Three rows in a bucket of four, then longer contexts, then only the last two rows, in a bucket of two.
    for alive in ([0, 1, 2], [0, 1, 2], [1, 2]):
        for one in alive:
            prompts[one].append(10 + one)
        ends = [(one, len(prompts[one])) for one in alive]
        expected = forward(plain, [(one, end - 1, end) for one, end in ends], prompts)
        found = graphs.run(
            [prompts[one][-1] for one in alive],
            [end - 1 for _, end in ends],
            [TABLES[one][(end - 1) // SIZE] * SIZE + (end - 1) % SIZE for one, end in ends],
            [TABLES[one] for one in alive],
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(graphed[1:], plain[1:], rtol=1e-5, atol=1e-5)
    assert captured == [4, 2]
