"""The families of models by the syntax of their calls, and which one a chat template belongs to."""

import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.tools import hermes, llama, mistral, pythonic
from gateway.tools.functions import Function
from gateway.tools.parser import Parser
from gateway.tools.structure import Spelling

ParserName = Literal["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"]


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class Family:
    """A syntax of calls.

    Attributes:
        parser: reads it, knowing the names of the functions.
        rules: the Lark rules of ``calls``, from the functions, the most calls, and how the vocabulary spells marks.
        marks: its marks that may be special tokens, which are no text otherwise.
        words: what chat templates of this family say, any of them.
        call_id: makes the id of a call.
        led: the mark that calls begin with, anywhere in an answer; None where an answer begins with them.
        plain: where an answer begins with its calls, a regular expression of one that has none.
        open_calls: whether a call can have arguments that its schema does not list.
    """

    parser: Callable[[Container[str]], Parser]
    rules: Callable[[Sequence[Function], int, Spelling], list[str]]
    marks: tuple[str, ...]
    words: tuple[str, ...]
    led: str | None = None
    plain: str = ""
    open_calls: bool = True
    call_id: Callable[[], str] = _call_id


# In the order in which templates are looked through. A template may say words of two: what it tells the model to write
# goes before the marks it knows.
FAMILIES: Mapping[str, Family] = {
    "mistral": Family(
        mistral.MistralParser,
        mistral.rules,
        (mistral.OPEN, mistral.CALL_ID, mistral.ARGS),
        (mistral.OPEN,),
        led=mistral.OPEN,
        call_id=mistral.call_id,
    ),
    "hermes": Family(hermes.HermesParser, hermes.rules, (hermes.OPEN, hermes.CLOSE), (hermes.OPEN,), led=hermes.OPEN),
    "llama3_json": Family(
        llama.LlamaParser,
        llama.rules,
        (llama.TAG,),
        (llama.TAG, '{"name": function name, "parameters": dictionary of'),
        plain=r"\s*[^\s{](.|\n)*",
    ),
    "pythonic": Family(
        pythonic.PythonicParser,
        pythonic.rules,
        (*pythonic.MARKS, pythonic.CLOSE),
        (pythonic.MARKS[0], "[func_name1(params_name1=params_value1"),
        plain=r"\s*[^\s\[](.|\n)*",
        open_calls=False,
    ),
}


def family_of(name: ParserName, template: str) -> Family | None:
    """The family that a setting names, or the one whose words a chat template says; None for neither."""
    if name != "auto":
        return FAMILIES.get(name)
    return next((family for family in FAMILIES.values() if any(word in template for word in family.words)), None)
