"""What a model says of CUDA graphs holds: one that a graph may record never reads a tensor on the host.

Without a device nothing is captured here; the operations that would end a capture are the same on the CPU.
"""

from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoints import tiny_checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from model_worker.model import load_model

pytestmark = pytest.mark.model

WAITING = ("_local_scalar_dense", "nonzero", "bincount", "unique", "masked_select", "equal")
"""Operations whose result, or its size, the host waits for."""


class HostReads(TorchDispatchMode):
    """Notes those operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().removeprefix("aten::").partition(".")[0]
        if name in WAITING:
            self.seen.add(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("family", "capturable"),
    [("llama", True), ("mixtral", False), ("phi3", True), ("gpt2", True), ("gpt_oss", True)],
)
def test_a_decode_step_waits_for_no_tensor_where_a_graph_may_record_it(
    family: str, capturable: bool, paged_run: Any, tmp_path: Path
) -> None:
    """Two sequences decode one token each, behind chunks of five and three."""
    loaded = load_model(tiny_checkpoint(family, tmp_path / family))
    run = paged_run(loaded, [list(range(3, 11)), list(range(5, 11))], 5)
    run.step({0: 5, 1: 3})
    with HostReads() as reads:
        run.step({0: 1, 1: 1})
    assert loaded.model.capturable is capturable
    assert bool(reads.seen) is not capturable


def test_an_embedding_that_follows_the_longest_position_is_not_recorded(tmp_path: Path) -> None:
    """A class that transformers compiles whole, with frequencies chosen by the largest position of a step."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    loaded = load_model(tiny_checkpoint("olmo2", tmp_path / "olmo2", rope_parameters=rope))
    assert not loaded.model.capturable
