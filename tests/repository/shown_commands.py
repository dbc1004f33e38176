"""What the pages show a reader to type: the commands of their fenced blocks, and those named within a line."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
    "deploy/kubernetes/README.md",
)
FENCE = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```[ ]*$", flags=re.MULTILINE | re.DOTALL)
# The programs that a reader is told to start, by what a line begins with.
PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:nice |bash )?(?:\S*bin/)?"
    r"(?:octavo|pytest|python[\d.]*|pip|make|docker|kubectl|curl|grpcurl|sed|cp|smg) \S"
    r"|(?:bash )?(?:benchmarks|deploy|tests)/\S+\.(?:sh|py)(?: |$)"
)
# What ends one command of a line and begins the next.
SEPARATORS = {"&&", "||", "|", "&", ";"}
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


class Block(NamedTuple):
    """A fenced block."""

    page: str
    line: int
    language: str
    text: str


class Command(NamedTuple):
    """One program with its arguments.

    Attributes:
        page: where it is shown.
        fenced: in a block, to be typed as it stands; else it is named within a line, and may leave arguments out.
        text: the whole line.
        environ: variables that are set before it.
        words: the program and its arguments.
    """

    page: str
    fenced: bool
    text: str
    environ: dict[str, str]
    words: list[str]


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    text = text_of(page)
    return [Block(page, text[: found.start()].count("\n") + 1, found[1], found[2]) for found in FENCE.finditer(text)]


def inline(page: str) -> list[str]:
    """What stands in backticks outside of blocks; a span may go over a line's end."""
    spans = re.findall(r"`([^`]+)`", FENCE.sub("", text_of(page)))
    return [" ".join(span.split()) for span in spans if span.strip()]


def typed(block: Block) -> list[str]:
    """The lines of a block that a reader types, continued ones joined: of a dialogue, those after a $."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def commands() -> list[Command]:
    """Every command of every page."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            if block.language in ("sh", "console"):
                found += [one for line in typed(block) for one in parsed(page, line, fenced=True)]
        found += [one for code in inline(page) if PROGRAM.match(code) for one in parsed(page, code, fenced=False)]
    return found


def parsed(page: str, line: str, *, fenced: bool) -> Iterator[Command]:
    """The commands of a line, as a shell splits it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in SEPARATORS:
            words.append(word)
        elif words:
            yield _command(page, line, words, fenced=fenced)
            words = []


def _command(page: str, line: str, words: list[str], *, fenced: bool) -> Command:
    environ = {}
    while words and ASSIGNMENT.match(words[0]):
        name, _, value = words[0].partition("=")
        if value.startswith("$("):
            # What a variable is set to by a command: that command is the one.
            words = [value.removeprefix("$("), *words[1:]]
            words[-1] = words[-1].removesuffix(")")
            break
        environ[name] = value
        words = words[1:]
    return Command(page, fenced, " ".join(line.split()), environ, words)
