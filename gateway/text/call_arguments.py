"""The arguments of a call in a conversation, as chat templates of both kinds read them. Pure."""

import json
from typing import Any


class CallArguments(dict[str, Any]):
    """An object whose text is the JSON that it came as.

    Most templates walk through arguments or write them as JSON themselves. Others take them for a text, which they are
    in OpenAI's API, and join them to other texts: of a plain object these would raise an error, or write Python.
    """

    __slots__ = ("__text",)

    def __init__(self, values: dict[str, Any], text: str) -> None:
        super().__init__(values)
        # Templates reach no private names, so a field called the same is found by them.
        self.__text = text

    def __str__(self) -> str:
        return self.__text

    def __add__(self, other: object) -> str:
        return self.__text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> str:
        return other + self.__text if isinstance(other, str) else NotImplemented


def read_arguments(text: str) -> Any:
    """Arguments from their JSON; empty text is an object without fields.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    text = text or "{}"
    values = json.loads(text)
    return CallArguments(values, text) if isinstance(values, dict) else values
