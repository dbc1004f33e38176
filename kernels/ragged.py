"""The ragged batch of one step: which query tokens belong to which sequence, and where its keys lie."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import index
from typing import Any

import torch

from kernels.staging import integers

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class RaggedBatch:
    """Sequences of one step, their query tokens concatenated; decode (one token) and prefill chunks may be mixed.

    Example with block size 4: A decodes its 6th token, B computes tokens 4..6 of a prompt whose first 4 are cached.

        query tokens      A5 | B4 B5 B6        query_starts    [0, 1, 4]
        keys of A  0..5 in blocks 9 2          context_lengths [6, 7]
        keys of B  0..6 in blocks 5 7          block_tables    [[9, 2], [5, 7]]

    The query tokens of a sequence are its last: token j of sequence i is at position
    `context_lengths[i] - query_lengths[i] + j` and sees the keys up to that position.

    Host copies of the lengths stand beside the tensors so that no layer waits for the device. Build with `of`; the
    constructor takes tensors as they are, by reference, for lengths and tables that change on the device, and raises
    ValueError unless they are contiguous int32 on one device and describe as many sequences as the host's lengths.

    Threads may use one batch at the same time: what `step_cache` holds is never changed, at most made twice.
    """

    query_starts: torch.Tensor
    """int32 [seqs + 1], offsets of each sequence's query tokens, the last entry being the number of tokens."""
    context_lengths: torch.Tensor
    """int32 [seqs], tokens whose KV is in the table after this step's writes: keys seen by the last query token."""
    block_tables: torch.Tensor
    """int32 [seqs, max_blocks], padded with the null block 0."""
    host_query_lengths: tuple[int, ...]
    host_context_lengths: tuple[int, ...]
    host_table_lengths: tuple[int, ...] | None = None
    """Blocks that each sequence's table really has; None: all of `block_tables`' width."""
    step_cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What an implementation derives from the batch once and uses in every layer; dies with the batch."""
    checked_block_sizes: set[int] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        sequences = len(self.host_query_lengths)
        if len(self.host_context_lengths) != sequences:
            raise ValueError(f"{sequences} query lengths for {len(self.host_context_lengths)} context lengths")
        lengths = {"query_starts": sequences + 1, "context_lengths": sequences, "block_tables": sequences}
        for name, length in lengths.items():
            given: torch.Tensor = getattr(self, name)
            rank = 2 if name == "block_tables" else 1
            if given.dim() != rank or given.shape[0] != length or given.dtype != torch.int32:
                wanted = f"[{length}, max_blocks]" if rank == 2 else f"[{length}]"
                raise ValueError(f"{name} must be int32 {wanted}, got {given.dtype} {list(given.shape)}")
            if not given.is_contiguous():
                raise ValueError(f"{name} must be contiguous, its strides are {given.stride()}")
            if given.device != self.block_tables.device:
                raise ValueError(f"{name} lies on {given.device}, block_tables on {self.block_tables.device}")

    @classmethod
    def of(
        cls,
        query_lengths: Sequence[int],
        context_lengths: Sequence[int],
        block_tables: Sequence[Sequence[int]] | torch.Tensor,
        device: torch.device | str = "cpu",
    ) -> "RaggedBatch":
        """Builds a batch from host lengths and block tables (lists of unequal length, or a padded int32 tensor).

        Raises ValueError when the three disagree in length, a query is empty, a context is shorter than its query or
        does not fit 32 bits; TypeError for lengths or blocks that are no whole numbers.
        """
        if not len(query_lengths) == len(context_lengths) == len(block_tables):
            raise ValueError(
                f"{len(query_lengths)} query lengths, {len(context_lengths)} context lengths and "
                f"{len(block_tables)} block tables do not describe the same sequences"
            )
        queries, contexts = tuple(map(index, query_lengths)), tuple(map(index, context_lengths))
        for sequence, (query, context) in enumerate(zip(queries, contexts, strict=True)):
            if not 1 <= query <= context <= _LARGEST:
                raise ValueError(f"sequence {sequence}: {query} query tokens in a context of {context}")
        device = torch.device(device)
        if isinstance(block_tables, torch.Tensor):
            tables, table_lengths = _checked(block_tables), None
            starts_and_contexts = integers([*accumulate(queries, initial=0), *contexts], torch.int32, device)
            on_device = tables.to(device).contiguous()
        else:
            table_lengths = tuple(map(len, block_tables))
            width = max(table_lengths, default=0)
            entries = [block for table in block_tables for block in (*table, *[0] * (width - len(table)))]
            # One copy for all: each has its own cost, and none is large.
            numbers = [*accumulate(queries, initial=0), *contexts, *map(index, entries)]
            everything = integers(numbers, torch.int32, device)
            starts_and_contexts = everything[: 2 * len(queries) + 1]
            on_device = everything[2 * len(queries) + 1 :].view(len(queries), width)
        return cls(
            query_starts=starts_and_contexts[: len(queries) + 1],
            context_lengths=starts_and_contexts[len(queries) + 1 :],
            block_tables=on_device,
            host_query_lengths=queries,
            host_context_lengths=contexts,
            host_table_lengths=table_lengths,
        )

    @property
    def num_sequences(self) -> int:
        return len(self.host_query_lengths)

    @property
    def num_tokens(self) -> int:
        """Query tokens of the step."""
        return sum(self.host_query_lengths)

    def check_tables(self, block_size: int) -> None:
        """ValueError unless each sequence's table has the blocks of its context; looked at once per block size."""
        if block_size in self.checked_block_sizes:
            return
        tables = self.host_table_lengths or (self.block_tables.shape[1],) * self.num_sequences
        for sequence, (context, blocks) in enumerate(zip(self.host_context_lengths, tables, strict=True)):
            if context > blocks * block_size:
                raise ValueError(
                    f"sequence {sequence}: a context of {context} tokens does not fit block tables of {blocks} blocks "
                    f"of {block_size}"
                )
        self.checked_block_sizes.add(block_size)


def _checked(tables: torch.Tensor) -> torch.Tensor:
    if tables.dim() != 2 or tables.dtype != torch.int32:
        raise ValueError(f"block_tables must be int32 [seqs, max_blocks], got {tables.dtype} {list(tables.shape)}")
    return tables
