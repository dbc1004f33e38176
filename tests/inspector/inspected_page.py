"""What tests of the page in Chromium share."""

from chromium import Chromium
from inspected_stack import Inspected

QUIET = """
(({ pool, look: { summary: { header, stats }, sequences } }) =>
  header.step >= arguments[0] && !sequences.length && !pool.sequences.size &&
  pool.counts[0] === stats.freeBlocks && pool.counts[1] === stats.cachedBlocks && pool.counts[4] === stats.fencedBlocks
)(page.model)
"""
"""From the manager's account of a step or of a later one: nobody is there, and the page counts blocks as it does."""


def expose(browser: Chromium) -> None:
    """The page's own object as `page` in the tests' scripts."""
    browser.run("return import('/inspect/main.js').then(({ inspector }) => { window.page = inspector; })")


def idle(browser: Chromium, stack: Inspected) -> None:
    """Wait until nobody is in the pool, and until the page has heard everything that led there."""
    browser.wait_for(QUIET, stack.idle())
