"""Who gave way and why, on the page in headless Chromium: a pool too small for two answers."""

import re
from collections.abc import Iterator

import pytest
import successor_model
from chromium import Chromium
from inspected_stack import Inspected, inspected_stack

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspected]:
    model = successor_model.write(tmp_path_factory.mktemp("successor"))
    with inspected_stack(model, num_blocks=128, host_memory_mib=1) as stack:
        yield stack


def test_a_preemption_is_explained(page: Chromium, inspected: Inspected) -> None:
    """Two answers of 1,900 tokens take 120 blocks of 16 each, and there are 128: unless one of them has all but ended
    before the other begins, one has to give way."""
    inspected.complete(prompt=["one: ", "two: "], max_tokens=1_900, temperature=0)
    page.wait_for("document.querySelector('#preemptions').textContent.includes('gave way')")
    told = re.compile(
        r"\d+ gave way (to \d+|itself): the pool had no block left for it\. "
        r"computing again: .+; swapping out and in: .+\. (swapped out|forgotten, to be computed again)\."
    )
    assert told.search(page.text("#preemptions"))
    page.wait_for("document.querySelector('#timelines').textContent.match(/(recompute|swap) [1-9]/)")
