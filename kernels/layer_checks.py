"""What the public operations around attention refuse before any implementation sees it, in the same words for all."""

from typing import get_args

import torch

from kernels.checks import check_device, check_rank, described
from kernels.packed import Activation, PackedLinear


def check_norm(hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor) -> None:
    """ValueError unless the arguments of `add_rms_norm` fit each other."""
    check_rank(2, "[tokens, width]", hidden=hidden)
    check_device(hidden.device, delta=delta, weight=weight)
    shape, dtype = hidden.shape, hidden.dtype
    if weight.shape != shape[1:] or weight.dtype != dtype:
        raise ValueError(f"weight must be {dtype} [{shape[1]}] as hidden, got {described(weight)}")
    if delta is not None and (delta.shape != shape or delta.dtype != dtype):
        raise ValueError(f"delta must be {dtype} {list(shape)} as hidden, got {described(delta)}")


def check_gate_up(gate_up: torch.Tensor) -> None:
    """ValueError unless this is gate and up side by side."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [tokens, 2 * width], got {list(gate_up.shape)}")


def check_weights(name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """ValueError unless these are weights of a product, and a bias that fits."""
    if weight.dim() != 2 or 0 in weight.shape or not weight.is_floating_point():
        raise ValueError(f"{name} must be floating-point [out, in], none of them 0, got {described(weight)}")
    if bias is not None:
        check_device(weight.device, bias=bias)
        if bias.shape != weight.shape[:1] or not bias.is_floating_point():
            raise ValueError(f"bias must be floating-point [{weight.shape[0]}], got {described(bias)}")


def check_gated(gate_up: torch.Tensor, activation: str) -> None:
    """ValueError unless there are as many rows of gate as of up, and the activation is known."""
    if gate_up.shape[0] % 2:
        raise ValueError(f"gate_up must be [2 * out, in], rows of gate and as many of up, got {list(gate_up.shape)}")
    if activation not in get_args(Activation):
        raise ValueError(f"activation {activation!r} is not known; known: {', '.join(get_args(Activation))}")


def check_product(values: torch.Tensor, packed: PackedLinear) -> None:
    """ValueError unless the values can be multiplied with the weights."""
    check_rank(2, "[tokens, in]", values=values)
    if values.shape[1] != packed.in_features:
        raise ValueError(f"values of width {values.shape[1]} for weights of {packed.in_features} inputs")
    check_device(values.device, weights=packed.weight)


def check_lookup(token_ids: torch.Tensor, packed: PackedLinear) -> None:
    """ValueError unless these are ids of rows, of weights that have rows."""
    if token_ids.dim() != 1 or token_ids.dtype != torch.int64:
        raise ValueError(f"token_ids must be int64 [tokens], got {described(token_ids)}")
    if packed.gated:
        raise ValueError("gated weights have no rows to look up: gate and up are packed together")
    check_device(token_ids.device, weights=packed.weight)


def check_logits(logits: torch.Tensor) -> None:
    """ValueError unless there is a largest one in each row."""
    if logits.dim() != 2 or logits.shape[1] == 0 or not logits.is_floating_point():
        raise ValueError(f"logits must be floating-point [rows, width] with width at least 1, got {described(logits)}")


def check_own(packed: PackedLinear, backend: str) -> None:
    """ValueError when another backend packed the weights, in an order of its own."""
    if packed.backend != backend:
        raise ValueError(
            f"the weights were packed by the {packed.backend} kernels, the {backend} kernels cannot read them"
        )
