"""Where a decode graph is captured. There is no device here: what torch.cuda is asked for stands in for one."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model_worker.engine.decode_graphs import CudaCapture

pytestmark = pytest.mark.unit


class TwoDevices:
    """The part of ``torch.cuda`` that a capture uses; device 0 is current."""

    def __init__(self) -> None:
        self.current = 0
        self.recorded: list[int] = []

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    def Stream(self) -> Any:
        return SimpleNamespace(device=self.current, wait_stream=lambda other: None)

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: None)

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: Any, stream: Any) -> Iterator[None]:
        self.recorded.append(stream.device)
        yield

    current_stream = Stream
    stream = staticmethod(contextlib.nullcontext)
    graph_pool_handle = staticmethod(tuple)


def test_a_capture_records_the_device_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on another device than the one that is recorded is in no graph, and a replay would compute nothing."""
    cuda = TwoDevices()
    monkeypatch.setattr(torch, "cuda", cuda)
    ran_on: list[int] = []

    def step() -> torch.Tensor:
        ran_on.append(cuda.current)
        return torch.zeros(1)

    CudaCapture(torch.device("cuda", 1))(step)
    assert (ran_on, cuda.recorded, cuda.current) == ([1, 1], [1], 0)
