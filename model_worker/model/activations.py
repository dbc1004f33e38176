"""Gated feed-forwards: activation(gate) * up, by the activation's name in config.json."""

from collections.abc import Callable

import torch
from torch.nn import functional

from kernels import Activation

Gate = Callable[[torch.Tensor], torch.Tensor]
"""[tokens, 2 * width], gate and up side by side -> [tokens, width]"""


def _gelu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.gelu(gate).mul_(up)


ACTIVATIONS: dict[str, Gate | Activation] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": _gelu,
}
"""Those named are applied by the product with the weights (`kernels.pack_gated_linear`)."""
