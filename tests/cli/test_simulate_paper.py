"""The published figures: all promises of ``octavo simulate --paper``, with as many requests as it takes by itself."""

import pytest

from cli.simulate.command import PAPER_REQUESTS
from cli.simulate.paper import figures
from cli.simulate.progress import bars
from kv_manager.core.manager import Manager


@pytest.mark.soak
def test_the_published_figures() -> None:
    with bars() as shown:
        found = list(figures(Manager(), PAPER_REQUESTS, 1, shown))
    assert [figure for figure in found if not figure.holds] == []
    # Three contiguous shares, two of paged blocks, samples and beams of three widths each.
    assert len([figure for figure in found if figure.bounds is not None]) == 3 + 2 + 3 + 3
