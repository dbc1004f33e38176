"""Fixtures that several areas share."""

import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports torch: spinning OpenMP threads starve whatever else runs here, the services above all.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# How long an example takes is the machine's.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The converted demo model, fetched once into OCTAVO_MODEL_CACHE or `.cache/models` of the repository."""
    from model_worker.demo import fetch_demo_model

    default = Path(__file__).parents[1] / ".cache" / "models"
    cache = Path(os.environ.get("OCTAVO_MODEL_CACHE", default)).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes wait here instead of fetching a second time
        return fetch_demo_model(cache / "smollm2")
