"""The C++ library must be there wherever there is a compiler: its tests are skipped only where it cannot exist."""

import shutil
from collections.abc import Iterator

import pytest
import torch

from kernels.cpu import library


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = library.why_not()
    if reason is None or shutil.which("g++") or shutil.which("c++"):
        return
    for item in items:
        if "kernels/cpu" in str(item.path):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
