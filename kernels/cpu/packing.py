"""Weights in the order the C++ library reads them: panels of 16 outputs, [panel, in, 16], in huge pages."""

import torch
from torch.nn import functional

from kernels import reference
from kernels.cpu.library import TYPES
from kernels.cpu.memory import Arena
from kernels.packed import Activation, PackedLinear
from kernels.quantize import INT4_GROUP, Int4, Int8, Quantization, quantize

NAME = "cpu"
PANEL = 16
"""Output columns of a panel of packed weights."""

_PAIRED = [column for low in range(PANEL // 2) for column in (low, low + PANEL // 2)]
"""Order of a panel row's columns in bfloat16: see `load_panel_row` in src/matrix.h."""
_BITS = 4

_arena = Arena()


def pack_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, quantization: Quantization | None = None
) -> PackedLinear:
    """`kernels.pack_linear`; dtypes not covered stay with the reference."""
    if weight.dtype not in TYPES:
        return reference.pack_linear(weight, bias, quantization)
    panels, scales = _in_huge_pages([_packed(weight, quantization)])
    out_features, in_features = weight.shape
    packed_bias = None if bias is None else _by_panel(bias.float()).flatten()
    return PackedLinear(
        NAME,
        panels,
        packed_bias,
        in_features,
        out_features,
        gated=False,
        quantization=quantization,
        scales=scales,
    )


def pack_gated_linear(
    gate_up: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: Activation = "silu",
    quantization: Quantization | None = None,
) -> PackedLinear:
    """`kernels.pack_gated_linear`: panels of gate and up alternate, so that one thread has both at hand."""
    if gate_up.dtype not in TYPES:
        return reference.pack_gated_linear(gate_up, bias, activation, quantization)
    panels, scales = _in_huge_pages([_packed(half, quantization) for half in gate_up.chunk(2)])
    packed_bias = None
    if bias is not None:
        packed_bias = torch.stack([_by_panel(half.float()) for half in bias.chunk(2)], 1).flatten()
    return PackedLinear(
        NAME,
        panels,
        packed_bias,
        gate_up.shape[1],
        gate_up.shape[0] // 2,
        gated=True,
        activation=activation,
        quantization=quantization,
        scales=scales,
    )


def _packed(weight: torch.Tensor, quantization: Quantization | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Panels, the first axis counting them, and their scales [panels, 16] if they have any."""
    if quantization is None:
        panels = _by_panel(weight).transpose(1, 2)
        return panels[..., _PAIRED] if weight.dtype == torch.bfloat16 else panels, None
    match quantize(weight, quantization):
        case Int8(q, scale):
            return _by_panel(q).transpose(1, 2), _by_panel(scale)
        case Int4(q, scale, least):
            return _int4_panels(q, scale, least), None


def _int4_panels(q: torch.Tensor, scale: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """int32 [panels, in / 32, 5, 16]: see src/int4.h."""
    shifts = torch.arange(0, 32, _BITS, dtype=torch.int32)[:, None]
    # Input 4 j + o of a group is in bits 4 j of word o.
    panels, groups = -(-q.shape[0] // PANEL), q.shape[1] // INT4_GROUP
    nibbles = _by_panel(q).reshape(panels, PANEL, groups, 32 // _BITS, -1).to(torch.int32)
    words = (nibbles << shifts).sum(3, dtype=torch.int32).permute(0, 2, 3, 1)
    ends = torch.stack([_by_panel(part).view(torch.int16) for part in (least, scale)], -1).view(torch.int32)
    return torch.cat([ends.permute(0, 2, 3, 1), words], 2)


def _by_panel(outputs: torch.Tensor) -> torch.Tensor:
    """[out, ...] as [out / 16, 16, ...], the last panel filled up with zeros; a view where it can be."""
    missing = -outputs.shape[0] % PANEL
    if missing:
        outputs = functional.pad(outputs, (*(0, 0) * (outputs.dim() - 1), 0, missing))
    return outputs.reshape(-1, PANEL, *outputs.shape[1:])


def _in_huge_pages(
    parts: list[tuple[torch.Tensor, torch.Tensor | None]],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Panels of the parts in turn, and their scales likewise."""
    first, scale = parts[0]
    panels = _arena.empty((first.shape[0] * len(parts), *first.shape[1:]), first.dtype)
    for index, (part, _) in enumerate(parts):
        panels[index :: len(parts)] = part
    if scale is None:
        return panels, None
    return panels, torch.stack([scales for _, scales in parts if scales is not None], 1).flatten()
