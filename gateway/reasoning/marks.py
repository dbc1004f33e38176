"""The families of models by the marks around their reasoning, and which of them a chat template knows."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gateway.text.chat_template import ChatTemplate

ParserName = Literal["auto", "none", "think", "mistral", "seed_oss"]


class Marks(NamedTuple):
    """What a model writes around its reasoning. Both may be special tokens, which are no text otherwise."""

    open: str
    close: str


FAMILIES: Mapping[str, Marks] = {
    "think": Marks("<think>", "</think>"),
    "mistral": Marks("[THINK]", "[/THINK]"),
    "seed_oss": Marks("<seed:think>", "</seed:think>"),
}


def marks_of(name: ParserName, template: ChatTemplate) -> Marks | None:
    """The marks that a setting names, or those that a chat template knows; None for neither.

    A template of a model that reasons says the closing mark: it drops the reasoning of earlier answers, or writes it.
    """
    if name != "auto":
        return FAMILIES.get(name)
    return next((marks for marks in FAMILIES.values() if template.says(marks.close)), None)
