"""Decoding by CUDA graphs: a step in which every row computes one token is captured once per bucket of rows.

A graph replays fixed launches over fixed memory, so its inputs lie in buffers that are filled before each replay, and a
batch that is smaller than its bucket is padded: padding rows have no context and write to the null block.

    rows        0 ............ n ............ bucket
                | the batch    | token 0, position 0, slot 0, context 0, table of null blocks
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels import RaggedBatch
from model_worker.model.paged_model import PagedModel

Step = Callable[[], Tensor]
Capture = Callable[[Step], tuple[Tensor, Callable[[], None]]]
"""Takes a step; gives where its output lies, and what runs it again into the same place."""


def buckets(most: int) -> list[int]:
    """Batch sizes that are captured: powers of two up to 8, then multiples of 8, the last one being ``most``."""
    sizes = [size for size in (1, 2, 4) if size < most] + list(range(8, most, 8))
    return [*sizes, most]


class CudaCapture:
    """Captures on one device; the graphs share their memory, since only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> tuple[Tensor, Callable[[], None]]:
        # A stream of another device would record nothing of the step, and its graph would run nothing.
        with torch.cuda.device(self._device):
            # Kernels are compiled and libraries make their workspaces at the first call, which no graph can record.
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory, stream=side):
                output = step()
        return output, graph.replay


class DecodeGraphs:
    """The graphs of one model and pool.

    Args:
        model: its forward pass is captured at the first batch of each bucket.
        pool: as the model takes it.
        max_rows: the largest batch.
        max_blocks: entries of the longest block table.
        block_size: tokens per block.
        capture: how a step is recorded.
    """

    def __init__(
        self, model: PagedModel, pool: Tensor, max_rows: int, max_blocks: int, block_size: int, capture: Capture
    ) -> None:
        device = pool.device
        self._model = model
        self._pool = pool
        self._capture = capture
        self._buckets = buckets(max_rows)
        self._max_context = max_blocks * block_size
        pinned = device.type == "cuda"
        # Token, position, slot; and by sequence: context, table. Staged where the device can fetch them by itself.
        self._staged = torch.zeros((3, max_rows), dtype=torch.int64, pin_memory=pinned)
        self._staged_tables = torch.zeros((max_rows, 1 + max_blocks), dtype=torch.int32, pin_memory=pinned)
        self._inputs = self._staged.to(device)
        self._contexts = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros((max_rows, max_blocks), dtype=torch.int32, device=device)
        self._starts = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
        self._captured: dict[int, tuple[Tensor, Callable[[], None]]] = {}

    def takes(self, rows: int, blocks: int) -> bool:
        """Whether a decode batch of so many rows, with tables of at most so many blocks, fits."""
        return rows <= self._buckets[-1] and blocks <= self._tables.shape[1]

    def run(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        tables: Sequence[Sequence[int]],
    ) -> Tensor:
        """One token for each row.

        Returns:
            Logits ``[rows, vocab]`` float32, in memory that the next call overwrites.
        """
        rows = len(ids)
        bucket = next(size for size in self._buckets if size >= rows)
        self._fill(rows, bucket, (ids, positions, slots), tables)
        if bucket not in self._captured:
            self._captured[bucket] = self._capture(self._step(bucket))
        output, replay = self._captured[bucket]
        replay()
        return output[:rows]

    def _fill(
        self, rows: int, bucket: int, columns: tuple[Sequence[int], ...], tables: Sequence[Sequence[int]]
    ) -> None:
        # What the device still reads of the last batch is overwritten only after that batch's tokens were read back.
        self._staged[:, :bucket].zero_()
        self._staged_tables[:bucket].zero_()
        self._staged[:, :rows] = torch.tensor(columns)
        for row, table in enumerate(tables):
            self._staged_tables[row, 0] = columns[1][row] + 1
            self._staged_tables[row, 1 : 1 + len(table)] = torch.tensor(table, dtype=torch.int32)
        self._inputs[:, :bucket].copy_(self._staged[:, :bucket], non_blocking=True)
        self._contexts[:bucket].copy_(self._staged_tables[:bucket, 0], non_blocking=True)
        self._tables[:bucket].copy_(self._staged_tables[:bucket, 1:], non_blocking=True)

    def _step(self, bucket: int) -> Step:
        """The forward pass over the first ``bucket`` rows of the buffers. Plans are made for the longest context."""
        batch = RaggedBatch(
            self._starts[: bucket + 1],
            self._contexts[:bucket],
            self._tables[:bucket],
            (1,) * bucket,
            (self._max_context,) * bucket,
        )
        ids, positions, slots = (self._inputs[column, :bucket] for column in range(3))
        return lambda: self._model.forward(ids, positions, slots, batch, self._pool)
