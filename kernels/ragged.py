"""The ragged batch of one step: which query tokens belong to which sequence, and where its keys lie."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch


@dataclass(frozen=True, slots=True, eq=False)
class RaggedBatch:
    """Sequences of one step, their query tokens concatenated; decode (one token) and prefill chunks may be mixed.

    Example with block size 4: A decodes its 6th token, B computes tokens 4..6 of a prompt whose first 4 are cached.

        query tokens      A5 | B4 B5 B6        query_starts    [0, 1, 4]
        keys of A  0..5 in blocks 9 2          context_lengths [6, 7]
        keys of B  0..6 in blocks 5 7          block_tables    [[9, 2], [5, 7]]

    The query tokens of a sequence are its last: token j of sequence i is at position
    `context_lengths[i] - query_lengths[i] + j` and sees the keys up to that position.

    Host copies of the lengths stand beside the tensors so that no layer waits for the device. Build with `of`.
    """

    query_starts: torch.Tensor
    """int32 [seqs + 1], offsets of each sequence's query tokens, the last entry being the number of tokens."""
    context_lengths: torch.Tensor
    """int32 [seqs], tokens whose KV is in the table after this step's writes: keys seen by the last query token."""
    block_tables: torch.Tensor
    """int32 [seqs, max_blocks], padded with the null block 0."""
    host_query_lengths: tuple[int, ...]
    host_context_lengths: tuple[int, ...]
    step_cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What an implementation derives from the batch once and uses in every layer; dies with the batch."""

    @classmethod
    def of(
        cls,
        query_lengths: Sequence[int],
        context_lengths: Sequence[int],
        block_tables: Sequence[Sequence[int]] | torch.Tensor,
        device: torch.device | str = "cpu",
    ) -> "RaggedBatch":
        """Builds a batch from host lengths and block tables (lists of unequal length, or a padded int32 tensor).

        Raises ValueError when the three disagree in length, a query is empty or a context shorter than its query.
        """
        if not len(query_lengths) == len(context_lengths) == len(block_tables):
            raise ValueError(
                f"{len(query_lengths)} query lengths, {len(context_lengths)} context lengths and "
                f"{len(block_tables)} block tables do not describe the same sequences"
            )
        for index, (query, context) in enumerate(zip(query_lengths, context_lengths, strict=True)):
            if not 1 <= query <= context:
                raise ValueError(f"sequence {index}: {query} query tokens in a context of {context}")
        starts = list(accumulate(query_lengths, initial=0))
        return cls(
            query_starts=torch.tensor(starts, dtype=torch.int32).to(device),
            context_lengths=torch.tensor(list(context_lengths), dtype=torch.int32).to(device),
            block_tables=_padded(block_tables).to(device),
            host_query_lengths=tuple(query_lengths),
            host_context_lengths=tuple(context_lengths),
        )

    @property
    def num_sequences(self) -> int:
        return len(self.host_query_lengths)

    @property
    def num_tokens(self) -> int:
        """Query tokens of the step."""
        return sum(self.host_query_lengths)


def _padded(tables: Sequence[Sequence[int]] | torch.Tensor) -> torch.Tensor:
    if isinstance(tables, torch.Tensor):
        if tables.dim() != 2 or tables.dtype != torch.int32:
            raise ValueError(f"block_tables must be int32 [seqs, max_blocks], got {tables.dtype} {list(tables.shape)}")
        return tables
    width = max((len(table) for table in tables), default=0)
    rows = [[*table, *[0] * (width - len(table))] for table in tables]
    return torch.tensor(rows, dtype=torch.int32).reshape(len(rows), width)
