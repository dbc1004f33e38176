"""Single logits of many rows, addressed at once."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]


def flat_entries(logits: Tensor, rows: Sequence[int], ids: Sequence[Ids]) -> Tensor:
    """int64: where ``logits.view(-1)`` holds the logits of ``ids[i]`` in row ``rows[i]``, one row after another."""
    starts = np.repeat(np.array(rows, dtype=np.int64) * logits.shape[-1], [len(some) for some in ids])
    return torch.from_numpy(starts + np.concatenate(ids)).to(logits.device)


def spread(values: Sequence[float], ids: Sequence[Ids], like: Tensor) -> Tensor:
    """One value per row, repeated for each of its ids, in dtype and place of ``like``."""
    return torch.from_numpy(np.repeat(np.array(values, dtype=np.float64), [len(some) for some in ids])).to(like)
