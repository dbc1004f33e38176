"""What the engine runs: a model whose KV cache is the paged pool."""

from typing import Protocol

from torch import Tensor

from kernels import RaggedBatch


class PagedModel(Protocol):
    """A causal language model whose KV cache is the paged pool."""

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        batch: RaggedBatch,
        pool: Tensor,
        logits_at: Tensor | None = None,
    ) -> Tensor:
        """Logits ``[rows, vocab]`` float32 of the tokens at ``logits_at``.

        Args:
            token_ids: int64 ``[tokens]``.
            positions: int64 ``[tokens]``.
            slots: int64 ``[tokens]``, where each token's K and V are written.
            batch: lengths and block tables.
            pool: ``[num_blocks + 1, layers, 2, kv_heads, block_size, head_dim]``, written in place.
            logits_at: int64 ``[rows]``, indexes into ``tokens``; None for all tokens.
        """
        ...
