"""``echo``: a completion's prompt comes before its text, and with log-probabilities asked for, so do the prompt's."""

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from gateway import runs
from gateway.generation import Generation
from gateway.http.logprob_shapes import unconditioned
from gateway.http.shapes import Part
from gateway.logprobs import TokenLogprobs


class Echo(NamedTuple):
    """What a prompt adds to the first part of each of its answers, beside the log-probabilities of its other tokens."""

    text: str
    first_token: tuple[TokenLogprobs, ...]
    """Empty when no log-probabilities are asked for."""


async def echo_of(task: Generation) -> Echo:
    """The echo of a generation's prompt.

    Raises:
        InvalidRequest: the text is too long for a message.
    """
    text = await runs.prompt_text(task)
    if task.parameters.prompt_logprobs is None:
        return Echo(text, ())
    tokenizer = task.model.tokenizer
    hidden = tokenizer.special_ids if task.parameters.skip_special_tokens else frozenset()
    return Echo(text, (unconditioned(tokenizer, task.prompt.token_ids[0], hidden),))


async def echoed(parts: AsyncGenerator[Part, None], echoes: Sequence[Echo]) -> AsyncGenerator[Part, None]:
    """Parts, each choice's first one with the echo of its prompt."""
    begun: set[int] = set()
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    async with contextlib.aclosing(parts):
        async for part in parts:
            if part.choice in begun:
                yield part
                continue
            begun.add(part.choice)
            piece, echo = part.piece, echoes[part.prompt]
            # They come with the first piece of the whole request, whichever sample that belongs to.
            known = prompt_logprobs.setdefault(part.prompt, piece.prompt_logprobs)
            text, logprobs = echo.text + piece.text, (*echo.first_token, *known, *piece.logprobs)
            yield part._replace(piece=dataclasses.replace(piece, text=text, logprobs=logprobs))
