"""The attention function that transformers' own modules call: it reads and writes the paged pool.

transformers hands queries, keys and values of the whole flat batch to a function registered by name. Which sequences
the tokens belong to, and where their blocks lie, cannot travel with the call (some modules drop what they don't know),
so the step stands in a context variable.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface

from kernels import RaggedBatch, paged_attention, write_kv

NAME = "octavo_paged"


class Step:
    """One forward pass: where its tokens lie, and how many layers have asked for attention so far."""

    def __init__(
        self, windows: tuple[int | None, ...], slots: torch.Tensor, batch: RaggedBatch, pool: torch.Tensor
    ) -> None:
        self.windows = windows
        self.slots = slots
        self.batch = batch
        self.pool = pool
        self.layers_done = 0

    def next_layer(self) -> int:
        """Layers are numbered by the order of their calls, which is the same in every step."""
        self.layers_done += 1
        return self.layers_done - 1


_step: ContextVar[Step] = ContextVar("octavo_step")


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Attention inside the block is that of this step."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def paged(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface.

    query    [1, heads, tokens, head_dim]; key and value [1, kv_heads, tokens, head_dim], rotated by the module
    s_aux    [heads], attention sinks
    returns  [1, tokens, heads, head_dim], and no weights

    What else a module may pass, or say in a mask, was looked at once, when the model was loaded: `general_probe`.
    """
    step = _step.get()
    layer = step.next_layer()
    dtype = step.pool.dtype
    write_kv(step.pool, layer, _by_token(key, dtype), _by_token(value, dtype), step.slots)
    attended = paged_attention(
        _by_token(query, dtype),
        step.pool,
        layer,
        step.batch,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=step.windows[layer],
        soft_cap=softcap,
        sinks=None if s_aux is None else s_aux.float(),
    )
    return attended[None].to(query.dtype), None


def _by_token(heads: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[1, heads, tokens, head_dim] as [tokens, heads, head_dim]."""
    return heads[0].transpose(0, 1).to(dtype)


AttentionInterface.register(NAME, paged)
