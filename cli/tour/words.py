"""What the sequences of the tour say, a token per word: first the prompt, then what a model might have generated."""

from typing import NamedTuple

SHARED = "the cat sat on the mat and purred"


class Script(NamedTuple):
    """A sequence's words, of which the first ``prompt`` are its prompt."""

    words: tuple[str, ...]
    prompt: int


def _script(prompt: str, generated: str = "") -> Script:
    return Script(tuple(f"{prompt} {generated}".split()), len(prompt.split()))


SCRIPTS = {
    "A": _script("the cat sat on the mat", "and purred softly until the moon rose over the quiet hill"),
    "B": _script(f"{SHARED} softly", "then it slept while the sun came up"),
    "C": _script(f"{SHARED} at noon", "while rain fell on every roof in our small town all day"),
    "D": _script(SHARED),
    "E": _script("a dog barked all night in the yard behind our old house again"),
    "F": _script(f"{SHARED} because it rained"),
}
"""By the letter that stands for the sequence."""
