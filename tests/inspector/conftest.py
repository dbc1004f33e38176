"""What the inspector's tests share."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cli.tour.pool import TourPool
from cli.tour.scenes import SCENES

HERE = Path(__file__).resolve().parent


def _load(name: str) -> ModuleType:
    """Test folders are no packages (importmode=importlib), so what they share is loaded by path, under its name."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


inspector_records = _load("inspector_records")
_load("inspected_stack")


@pytest.fixture
def recorder() -> Callable[..., Any]:
    """Records scenes of the tour: ``recorder(SCENES)`` from the second one on, for the first attaches the pool."""

    def record(scenes: Sequence[Any], pool: TourPool | None = None) -> Any:
        if pool is None:
            pool = TourPool()
            SCENES[0](pool)
            scenes = scenes[1:]
        tape = inspector_records.Recorder(pool)
        for _ in tape.play(scenes):
            pass
        return tape

    return record
