"""What the inspector's tests share."""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from chromium import Chromium

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
inspected_page = _load("inspected_page")
_load("silent_pool")


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.fixture
def chromium(browser: Chromium) -> Iterator[Chromium]:
    """A browser that looks at nothing, and does so again when the test has ended: services may end then as well."""
    yield browser
    browser.open("about:blank")
    browser.complaints()


@pytest.fixture
def page(chromium: Chromium, inspected: Any) -> Iterator[Chromium]:
    """The page as it opens, reading the pool of the module's ``inspected`` stack, in which nobody is.

    Whatever a test does, the console has nothing to complain of.
    """
    chromium.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    chromium.open(inspected.page)
    inspected_page.expose(chromium)
    chromium.wait_for("page.model.pool !== null && page.model.look !== null")
    inspected_page.idle(chromium, inspected)
    yield chromium
    assert chromium.complaints() == []


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
