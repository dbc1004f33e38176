"""Arithmetic on the rows of a batch, such that a row's result does not depend on the other rows.

On a CPU numpy sorts and selects: its vectorised sort and partition of float32 take a tenth of the time of torch's,
which carry the indices along.
"""

import numpy as np
import torch
from torch import Tensor

BLOCK = 256


def block_sums(values: Tensor, size: int = BLOCK) -> Tensor:
    """The sums of ``size`` columns each, the last of those that remain: ``[rows, ceil(width / size)]``.

    The sum of a whole row is split between threads when there are few rows, which changes its last bits.
    """
    rows, width = values.shape
    whole = width - width % size
    sums = values[:, :whole].reshape(rows, -1, size).sum(dim=-1)
    if whole == width:
        return sums
    return torch.cat([sums, values[:, whole:].sum(dim=-1, keepdim=True)], dim=-1)


def row_sums(values: Tensor) -> Tensor:
    """float64 ``[rows, 1]``."""
    return block_sums(values).sum(dim=-1, keepdim=True, dtype=torch.float64)


def largest(values: Tensor, count: int) -> Tensor:
    """The ``count`` largest of each row of ``[rows, width]``, largest first: ``[rows, count]``."""
    if values.device.type != "cpu":
        return torch.topk(values, count, dim=-1).values
    array = values.numpy()
    if count < array.shape[-1]:
        array = np.partition(array, array.shape[-1] - count, axis=-1)[:, -count:]
    return torch.from_numpy(np.sort(array, axis=-1)[:, ::-1].copy())


def ascending(values: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of ``[rows, width]`` sorted, and the columns in that order; that of equal values is open."""
    if values.device.type != "cpu":
        return torch.sort(values, dim=-1)
    order = torch.from_numpy(np.argsort(values.numpy(), axis=-1))
    return values.gather(1, order), order


def some(values: Tensor, rows: Tensor) -> Tensor:
    """The rows of a mask, ``[rows]``; without a copy when these are all."""
    return values if bool(rows.all()) else values[rows]


def flat_indices(mask: Tensor) -> Tensor:
    """int64: where a mask is set, counted row by row."""
    if mask.device.type != "cpu":
        return torch.nonzero(mask.view(-1)).squeeze(-1)
    return torch.from_numpy(np.flatnonzero(mask.numpy()))
