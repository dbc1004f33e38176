"""The prompt of a completion body: a text, token ids, or an array of either."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gateway import json_words, prompts
from gateway.errors import ContextExceeded, InvalidRequest
from gateway.models import ServedModel
from gateway.prompts import PROMPT, Prompt

# Each is a request of its own to the worker, and all of them run at once.
MAX_PROMPTS = 128

_FORMS = "a text, token ids, or an array of either"


async def prompts_of(
    model: ServedModel, document: Mapping[str, Any], max_bytes: int, *, add_special_tokens: bool | None = None
) -> list[Prompt]:
    """The prompts of a body, at least one.

    Args:
        model: what continues them.
        document: the body.
        max_bytes: bound of a text, and of all texts together.
        add_special_tokens: as ``prompts.from_text`` takes it.

    Raises:
        InvalidRequest: ``prompt`` is missing, empty, too long, or none of the four forms.
    """

    async def from_text(text: str) -> Prompt:
        if not text:
            raise InvalidRequest({PROMPT: "empty, at least one character or token id is needed"})
        return await prompts.from_text(model, text, max_bytes, add_special_tokens=add_special_tokens)

    match document.get(PROMPT):
        case None:
            raise InvalidRequest({PROMPT: f"missing, needed is {_FORMS}"})
        case str(text):
            return [await from_text(text)]
        case []:
            raise InvalidRequest({PROMPT: "empty, at least one prompt is needed"})
        case [str() | list(), *_] as several:
            return await _several(model, several, max_bytes, from_text)
        case [*ids]:
            return [await _from_ids(model, ids)]
        case other:
            raise InvalidRequest({PROMPT: f"{json_words.kind(other)} found, allowed is {_FORMS}"})


async def _several(
    model: ServedModel, several: list[Any], max_bytes: int, from_text: Callable[[str], Awaitable[Prompt]]
) -> list[Prompt]:
    if len(several) > MAX_PROMPTS:
        raise InvalidRequest({PROMPT: f"{len(several)} prompts found, allowed are at most {MAX_PROMPTS}"})
    prompts.check_size(sum(map(_size, several)), max_bytes)
    made: list[Prompt] = []
    for position, prompt in enumerate(several):
        with _within(position):
            match prompt:
                case str(text):
                    made.append(_placed(await from_text(text), position))
                case [*ids]:
                    made.append(_placed(await _from_ids(model, ids), position))
                case other:
                    raise InvalidRequest({PROMPT: f"{json_words.kind(other)} found, allowed is {_FORMS}"})
    return made


def _size(prompt: Any) -> int:
    """Bytes of a text, 0 of anything else; a text that is no Unicode is refused at its place."""
    return len(prompt.encode(errors="surrogatepass")) if isinstance(prompt, str) else 0


async def _from_ids(model: ServedModel, ids: list[Any]) -> Prompt:
    # A longer one is refused by its length, without a look at its elements.
    if len(ids) < model.max_context and not set(map(type, ids)) <= {int}:
        at, wrong = next((at, id_) for at, id_ in enumerate(ids) if type(id_) is not int)
        found = json_words.number(wrong) if isinstance(wrong, float) else json_words.kind(wrong)
        raise InvalidRequest({f"{PROMPT}[{at}]": f"{found} found, allowed is a token id"})
    return await prompts.from_token_ids(model, ids)


def _placed(prompt: Prompt, position: int) -> Prompt:
    return prompt._replace(name=f"{PROMPT}[{position}]")


@contextmanager
def _within(position: int) -> Iterator[None]:
    """Let problems of a prompt name its place in the array."""
    try:
        yield
    except InvalidRequest as error:
        problems = {
            f"{PROMPT}[{position}]{name.removeprefix(PROMPT)}": problem for name, problem in error.problems.items()
        }
        if isinstance(error, ContextExceeded):
            raise ContextExceeded(problems, error.max_context) from error
        raise InvalidRequest(problems) from error
