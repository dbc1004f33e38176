"""Gated feed-forwards: activation(gate) * up, by the activation's name in config.json."""

from collections.abc import Callable

import torch
from torch.nn import functional

Gate = Callable[[torch.Tensor], torch.Tensor]
"""[tokens, 2 * width], gate and up side by side -> [tokens, width]"""


def _gelu_tanh(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


def _gelu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.gelu(gate).mul_(up)


ACTIVATIONS: dict[str, Gate | None] = {
    "silu": None,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu": _gelu,
}
"""None: the product with the weights applies it (`kernels.pack_gated_linear`)."""
