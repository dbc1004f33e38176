"""Reasoning is told apart from content by the text alone, however the text comes."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.reasoning.marks import FAMILIES, Marks, ParserName, marks_of
from gateway.reasoning.splitter import Phase, ReasoningSplitter
from gateway.text.chat_template import ChatTemplate

pytestmark = pytest.mark.property

THINK = FAMILIES["think"]


def read(pieces: Sequence[str], start: Phase = Phase.OPENS, marks: Marks = THINK) -> tuple[str, str]:
    splitter = ReasoningSplitter(marks, start)
    splits = [*map(splitter.push, pieces), splitter.finish()]
    return "".join(one.reasoning for one in splits), "".join(one.content for one in splits)


def whole(text: str, start: Phase, marks: Marks) -> tuple[str, str]:
    """The same of a text that is known to its end: (reasoning, content)."""
    opened, closed, blank = re.escape(marks.open), re.escape(marks.close), "[ \t\n\r]*"
    match start:
        case Phase.OPENS:
            begun = re.match(blank + opened, text)
            return whole(text[begun.end() :], Phase.BEGINS, marks) if begun else ("", text)
        case Phase.BEGINS:
            return whole(text.lstrip(" \t\n\r"), Phase.REASONS, marks)
        case Phase.REASONS:
            thought, *rest = re.split(blank + closed, text, maxsplit=1)
            return (thought, rest[0].lstrip(" \t\n\r")) if rest else (thought.rstrip(" \t\n\r"), "")
        case Phase.ENDS:
            return "", text.lstrip(" \t\n\r")
    return "", text


FRAGMENTS = ("<think>", "</think>", "<", "</thi", "<th", "nk>", " ", "\n", "\t\n ", "a", "bc>", "é", "\u00a0")


@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.sampled_from(Phase), st.data(),
)  # fmt: skip
def test_pieces_say_what_the_whole_says(text: str, start: Phase, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = whole(text, start, THINK)
    assert read(pieces, start) == expected
    assert read([*text], start) == expected


@pytest.mark.parametrize(
    ("written", "start", "told"),
    [
        ("<think>\nHm.\n</think>\n\nYes.\n", Phase.OPENS, ("Hm.", "Yes.\n")),
        ("\n<think>Hm.</think>Yes.", Phase.OPENS, ("Hm.", "Yes.")),
        ("\nHm.\n</think>\n\nYes.", Phase.BEGINS, ("Hm.", "Yes.")),
        # The prompt's last message is gone on with in the midst of a sentence.
        (" so.</think> Yes.", Phase.REASONS, (" so.", "Yes.")),
        ("<think>\n\n</think>\n\nYes.", Phase.OPENS, ("", "Yes.")),
        # The prompt has closed it: what looks like reasoning is text.
        ("\n\nYes.", Phase.ENDS, ("", "Yes.")),
        ("\n<think>Yes.</think>", Phase.ANSWERS, ("", "\n<think>Yes.</think>")),
        # It stands at the beginning, and once.
        ("A model writes <think>so</think>.", Phase.OPENS, ("", "A model writes <think>so</think>.")),
        ("<think>a</think>b<think>c</think>", Phase.OPENS, ("a", "b<think>c</think>")),
        ("<think>a<think>b</think>c", Phase.OPENS, ("a<think>b", "c")),
        ("Yes.</think>", Phase.OPENS, ("", "Yes.</think>")),
        # Cut anywhere.
        ("<thi", Phase.OPENS, ("", "<thi")),
        ("<think>", Phase.OPENS, ("", "")),
        ("<think>Hm. \n</thi", Phase.OPENS, ("Hm. \n</thi", "")),
        ("<think>Hm. \n", Phase.OPENS, ("Hm.", "")),
        ("<think>Hm.</think>\n", Phase.OPENS, ("Hm.", "")),
        (" \n", Phase.OPENS, ("", " \n")),
    ],
)
def test_what_models_write(written: str, start: Phase, told: tuple[str, str]) -> None:
    assert read([written], start) == told == whole(written, start, THINK)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_split_and_found_by_its_template(family: ParserName) -> None:
    marks = FAMILIES[family]
    assert read([f"{marks.open}a{marks.close}b"], marks=marks) == ("a", "b")
    template = ChatTemplate("{{ messages[0].content.split('" + marks.close + "')[-1] }}", {})
    assert marks_of("auto", template) == marks_of(family, ChatTemplate(None, {})) == marks
    assert marks_of("none", template) is None
    assert marks_of("auto", ChatTemplate("{{ messages }}", {})) is None
    # What a model with tools reasons by may stand in one of its templates alone.
    assert marks_of("auto", ChatTemplate({"default": "", "tool_use": marks.close}, {})) == marks


def test_nothing_that_may_be_a_mark_is_told_too_early() -> None:
    splitter = ReasoningSplitter(THINK, Phase.OPENS)
    told = [splitter.push(character) for character in "<think>ab \n</think>\n\ncd"]
    assert [one.reasoning for one in told if one.reasoning] == ["a", "b"]
    assert [one.content for one in told if one.content] == ["c", "d"]
