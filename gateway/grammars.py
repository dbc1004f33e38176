"""What generated text must match, in the notations that the worker's sampler enforces. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.errors import InvalidRequest
from octavo.worker.v1 import sampling_pb2

Notation = Literal["json_schema", "json_object", "regex", "lark"]

FORMAT = "response_format"

# A choice is written out in the grammar.
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language.

    Attributes:
        notation: how ``source`` is written.
        source: the schema, expression or grammar; empty for json_object.
        parameter: the parameter that asked for it, which an error names.
    """

    notation: Notation
    source: str
    parameter: str = FORMAT

    def message(self) -> sampling_pb2.Grammar:
        """As the worker takes it."""
        match self.notation:
            case "json_object":
                return sampling_pb2.Grammar(json_object=True)
            case "json_schema":
                return sampling_pb2.Grammar(json_schema=self.source)
            case "regex":
                return sampling_pb2.Grammar(regex=self.source)
            case "lark":
                return sampling_pb2.Grammar(lark=self.source)


def quoted(text: str) -> str:
    """A text as a Lark grammar spells it, which is JSON's way, but for DEL: its lexer takes none."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def one_of(at: str, choices: Sequence[str]) -> Grammar:
    """The language of a few texts.

    Args:
        at: the field that they came in.
        choices: the texts.

    Raises:
        InvalidRequest: there are none, or too many.
    """
    if not 0 < len(choices) <= MAX_CHOICES:
        raise InvalidRequest({at: f"{len(choices)} texts found, allowed are 1 to {MAX_CHOICES}"})
    return Grammar("lark", "start: " + " | ".join(map(quoted, choices)))
