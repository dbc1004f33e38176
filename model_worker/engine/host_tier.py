"""Running the swaps of a step: blocks go out to the host tier and come back, in the order of rule 6."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kernels import swap_in, swap_out
from model_worker.engine.batch import Batch

Moves = Sequence[tuple[int, int]]


class SwapFailed(Exception):
    """Blocks did not move: nothing that the step was granted on their account is to be trusted."""


class Swaps(Protocol):
    """What the engine asks of a host tier."""

    def run(self, batch: Batch) -> None:
        """Run the swaps of a step, or queue them where its writes come after them.

        Raises:
            SwapFailed: some did not run.
        """
        ...

    def completed(self, step: int) -> int:
        """The newest step up to ``step`` whose swaps have all ended."""
        ...

    def drain(self) -> None:
        """Wait until all swaps have ended."""
        ...

    @property
    def bytes_per_second(self) -> float:
        """How fast blocks move, one way; 0 before it was measured."""
        ...


class NoHostTier:
    """A pool without a host tier."""

    bytes_per_second = 0.0

    def run(self, batch: Batch) -> None:
        if batch.swaps_out or batch.swaps_in:
            raise SwapFailed(f"step {batch.step} swaps, but this pool has no host tier")

    def completed(self, step: int) -> int:
        return step

    def drain(self) -> None:
        pass


class HostTier:
    """Host blocks beside a pool on the CPU: swaps run where they stand in the step and have ended when it goes on.

    Args:
        pool: ``[num_blocks + 1, ...]``.
        host: ``[num_host_blocks, ...]`` of the same block layout.
    """

    def __init__(self, pool: Tensor, host: Tensor) -> None:
        self._pool = pool
        self._host = host
        self._block_bytes = host[0].nbytes
        self.bytes_per_second = 0.0
        # A first figure for the manager's prices, before anything lies in either place. Memory is mapped when it is
        # first touched, which is no part of it.
        for _ in range(2):
            self.bytes_per_second = 0.0
            self._timed(swap_out, [(1, 0)])
            self._timed(swap_in, [(0, 1)])

    def run(self, batch: Batch) -> None:
        try:
            if batch.swaps_out:
                self._timed(swap_out, batch.swaps_out)
            if batch.swaps_in:
                self._timed(swap_in, batch.swaps_in)
        except RuntimeError as error:
            raise SwapFailed(str(error).splitlines()[0]) from error

    def completed(self, step: int) -> int:
        return step

    def drain(self) -> None:
        pass

    def _timed(self, move: Callable[[Tensor, Tensor, Sequence[int], Sequence[int]], None], pairs: Moves) -> None:
        sources, destinations = zip(*pairs, strict=True)
        began = time.perf_counter()
        move(self._pool, self._host, sources, destinations)
        rate = len(pairs) * self._block_bytes / max(time.perf_counter() - began, 1e-9)
        self.bytes_per_second = rate if not self.bytes_per_second else 0.8 * self.bytes_per_second + 0.2 * rate


class StreamedHostTier:
    """Pinned host blocks beside a pool on a GPU: swaps run on a stream of their own, behind the steps.

    The manager pins what a swap-out reads until the step is reported complete (rule 4, ``swaps_on_own_stream``), so
    only swaps in must end before the step's writes.
    """

    def __init__(self, pool: Tensor, host: Tensor) -> None:
        self._pool = pool
        self._host = host
        self._block_bytes = host[0].nbytes
        self._stream = torch.cuda.Stream(pool.device)  # type: ignore[no-untyped-call]
        self._pending: list[tuple[int, int, torch.cuda.Event, torch.cuda.Event]] = []
        self.bytes_per_second = 0.0

    def run(self, batch: Batch) -> None:
        if not (batch.swaps_out or batch.swaps_in):
            return
        steps = torch.cuda.current_stream(self._pool.device)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        try:
            self._stream.wait_stream(steps)  # every swap of step k+1 starts after step k's last write and read
            with torch.cuda.stream(self._stream):
                began.record()
                for move, pairs in ((swap_out, batch.swaps_out), (swap_in, batch.swaps_in)):
                    if pairs:
                        move(self._pool, self._host, *zip(*pairs, strict=True))
                ended.record()
            if batch.swaps_in:
                steps.wait_event(ended)
        except RuntimeError as error:
            raise SwapFailed(str(error).splitlines()[0]) from error
        moved = (len(batch.swaps_out) + len(batch.swaps_in)) * self._block_bytes
        self._pending.append((batch.step, moved, began, ended))

    def completed(self, step: int) -> int:
        while self._pending and self._pending[0][3].query():  # type: ignore[no-untyped-call]
            _, moved, began, ended = self._pending.pop(0)
            seconds = began.elapsed_time(ended) / 1000
            self.bytes_per_second = moved / max(seconds, 1e-9)
        return min(step, self._pending[0][0] - 1) if self._pending else step

    def drain(self) -> None:
        self._stream.synchronize()
