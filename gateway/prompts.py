"""A prompt, or a conversation, becomes token ids that fit the model, and back; or an error says why it cannot.

Problems name ``prompt``; each surface knows which of its fields the prompt came in.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from gateway import json_words
from gateway.errors import ContextExceeded, InvalidRequest
from gateway.models import ServedModel
from gateway.parameters import Parameters
from gateway.text.chat_template import ChatTemplateError
from gateway.tools.functions import Function
from service.channels import MAX_MESSAGE_BYTES

PROMPT = "prompt"

# Encoding runs at megabytes per second: up to here it takes less than handing it to a thread would cost the others.
INLINE_CHARACTERS = 4096

# While it is encoded a text takes more than a hundred times its size. Texts beyond this, longer than most contexts,
# wait for one of two threads of their own: a handful would take gigabytes, and all threads that others wait for.
LONG_CHARACTERS = 1024 * 1024
LONG_TEXTS = ThreadPoolExecutor(2, thread_name_prefix="long-text")

# Looking at this many ids, or decoding them, takes about 2 ms. A built-in such as `min` holds the GIL until it is done,
# so more are looked at in slices of this size: a thread that did it at once would stall the event loop all the same.
IDS_AT_ONCE = 16384

# What an answer's message takes beside its text is far below this.
MAX_TEXT_BYTES = MAX_MESSAGE_BYTES - 4096

# The roles of messages, each by the name that templates know. Checked here and not by the template, which may drop an
# unknown role silently.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

Message = Mapping[str, Any]


class Prompt(NamedTuple):
    """What the model is given."""

    token_ids: Sequence[int]
    text: str | None
    """The text that was tokenized; None for a prompt of token ids."""
    name: str = PROMPT
    """How problems name it: one of several by its place, as ``prompt[2]``."""
    continues: str | None = None
    """The text of the message that a conversation is to go on with; None where it opens a new one."""


def check_size(size: int, max_bytes: int) -> None:
    """Refuse what is too long to be looked at.

    Raises:
        InvalidRequest: ``size`` is above ``max_bytes``.
    """
    if size > max_bytes:
        raise InvalidRequest({PROMPT: f"{size} bytes found, allowed are at most {max_bytes}"})


def _check_text(text: str, max_bytes: int) -> None:
    try:
        check_size(len(text.encode()), max_bytes)
    except UnicodeEncodeError as error:
        raise InvalidRequest({PROMPT: "a lone surrogate found, allowed is Unicode text"}) from error


async def from_text(model: ServedModel, text: str, max_bytes: int, *, add_special_tokens: bool | None = None) -> Prompt:
    """Tokenize text.

    Args:
        model: whose tokenizer.
        text: the text.
        max_bytes: its bound.
        add_special_tokens: whether the tokenizer puts its special tokens around it; None for yes.

    Raises:
        InvalidRequest: the text is too long or no Unicode.
    """
    _check_text(text, max_bytes)
    return Prompt(await _encoded(model, text, add_special_tokens=add_special_tokens is not False), text)


async def _encoded(model: ServedModel, text: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of a text; one that begins with bos, as a rendered conversation may, has its special tokens already."""
    bos = model.tokenizer.special_tokens.get("bos_token")
    adds = add_special_tokens and not (bos and text.startswith(bos))

    def encode() -> list[int]:
        return model.tokenizer.encode(text, add_special_tokens=adds)

    if len(text) <= INLINE_CHARACTERS:
        return encode()
    lane = LONG_TEXTS if len(text) > LONG_CHARACTERS else None  # None: the loop's own threads
    return await asyncio.get_running_loop().run_in_executor(lane, encode)


async def from_token_ids(model: ServedModel, token_ids: Sequence[int]) -> Prompt:
    """Take token ids as they are.

    Raises:
        InvalidRequest: the context has no room for them and an answer, or one lies outside the vocabulary.
    """
    # Before any look at the ids: a message holds millions of them.
    _check_room(model, len(token_ids), PROMPT)
    if len(token_ids) <= IDS_AT_ONCE:
        check_vocabulary(model, token_ids, PROMPT)
    else:
        await asyncio.to_thread(check_vocabulary, model, token_ids, PROMPT)
    return Prompt(token_ids, None)


async def to_text(model: ServedModel, token_ids: Sequence[int], name: str, *, skip_special_tokens: bool) -> str:
    """The text of at most a context of token ids: no prompt and its answer have more.

    Args:
        model: whose vocabulary the ids are of.
        token_ids: the ids.
        name: what problems call them.
        skip_special_tokens: leave special tokens out.

    Raises:
        InvalidRequest: there are more ids, one lies outside the vocabulary, or the text is too long for a message.
    """
    if len(token_ids) > model.max_context:
        raise InvalidRequest(
            {name: f"{len(token_ids)} ids found, allowed are at most the context's {model.max_context}"}
        )
    if len(token_ids) <= IDS_AT_ONCE:
        return _to_text(model, token_ids, name, skip_special_tokens)
    return await asyncio.to_thread(_to_text, model, token_ids, name, skip_special_tokens)


def _to_text(model: ServedModel, token_ids: Sequence[int], name: str, skip_special_tokens: bool) -> str:
    check_vocabulary(model, token_ids, name)
    ids: list[int] = []
    for part in _slices(token_ids):
        ids.extend(part)
    text = model.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    size = len(text.encode())
    if size > MAX_TEXT_BYTES:
        raise InvalidRequest({name: f"{size} bytes of text found, allowed are at most {MAX_TEXT_BYTES}"})
    return text


def _slices(token_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (token_ids[start : start + IDS_AT_ONCE] for start in range(0, len(token_ids), IDS_AT_ONCE))


def check_vocabulary(model: ServedModel, token_ids: Sequence[int], name: str) -> None:
    """Refuse ids outside the model's vocabulary.

    Raises:
        InvalidRequest: naming the first one.
    """
    for number, part in enumerate(_slices(token_ids)):
        if not 0 <= min(part) <= max(part) < model.vocab_size:
            at, id_ = next((at, id_) for at, id_ in enumerate(part) if not 0 <= id_ < model.vocab_size)
            position = number * IDS_AT_ONCE + at
            raise InvalidRequest(
                {f"{name}[{position}]": f"{json_words.number(id_)} found, token ids are below {model.vocab_size}"}
            )


async def from_messages(
    model: ServedModel,
    messages: Iterable[Message],
    max_bytes: int,
    *,
    continue_final_message: bool,
    tools: Sequence[Function] = (),
    variables: Mapping[str, Any] | None = None,
    add_special_tokens: bool | None = None,
) -> Prompt:
    """Render a conversation by the model's chat template, in a thread, and tokenize the result.

    Args:
        model: whose template and tokenizer.
        messages: plain JSON values, as chat templates read them; read in the thread.
        max_bytes: bound of the rendered text.
        continue_final_message: leave the last message open instead of opening an answer.
        tools: functions the model is told of.
        variables: more names for the template.
        add_special_tokens: whether the tokenizer puts its special tokens around the result; None for no.

    Raises:
        InvalidRequest: there is no message, a role is unknown, the template refuses, or the text is too long.
    """
    text, last = await asyncio.to_thread(
        _rendered, model, messages, max_bytes, continue_final_message, tools, variables or {}
    )
    ids = await _encoded(model, text, add_special_tokens=bool(add_special_tokens))
    return Prompt(ids, text, continues=last if continue_final_message else None)


def _rendered(
    model: ServedModel,
    messages: Iterable[Message],
    max_bytes: int,
    continue_final_message: bool,
    tools: Sequence[Function],
    variables: Mapping[str, Any],
) -> tuple[str, str]:
    """A conversation's text, and that of its last message."""
    conversation: list[Message] = []
    for position, message in enumerate(messages):
        if message["role"] not in ROLES:
            raise InvalidRequest({f"{PROMPT}[{position}].role": f"unknown, allowed are {', '.join(ROLES)}"})
        conversation.append({**message, "role": ROLES[message["role"]]})
    if not conversation:
        raise InvalidRequest({PROMPT: "empty, at least one message is needed"})
    try:
        text = model.template.render(
            conversation,
            tools=[tool.described() for tool in tools] or None,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
            variables=variables,
        )
    except ChatTemplateError as error:
        raise InvalidRequest({PROMPT: str(error)}) from error
    _check_text(text, max_bytes)
    return text, conversation[-1]["content"]


def token_budget(model: ServedModel, prompt: Prompt, parameters: Parameters, default_max_tokens: int) -> int:
    """The most tokens to generate.

    ``max_tokens`` when the caller gave it; else the default, cut where the context ends.

    Raises:
        InvalidRequest: prompt and answer do not fit the context, or fewer than ``min_tokens`` do.
    """
    prompt_tokens = len(prompt.token_ids)
    room = _check_room(model, prompt_tokens, prompt.name)
    if parameters.max_tokens is not None and parameters.max_tokens > room:
        raise ContextExceeded(
            {
                "max_tokens": f"{parameters.max_tokens} found, allowed are at most {room}: "
                f"the context holds {model.max_context} tokens and the prompt has {prompt_tokens}"
            },
            model.max_context,
        )
    budget = min(default_max_tokens, room) if parameters.max_tokens is None else parameters.max_tokens
    if parameters.min_tokens > budget:
        raise InvalidRequest({"min_tokens": f"{parameters.min_tokens} found, at most {budget} tokens are generated"})
    return budget


def _check_room(model: ServedModel, prompt_tokens: int, name: str) -> int:
    """The most tokens that an answer to a prompt of this length can have.

    Raises:
        InvalidRequest: the prompt is empty or leaves no room for an answer.
    """
    if prompt_tokens == 0:
        raise InvalidRequest({name: "no token found, at least one is needed"})
    room = model.max_context - prompt_tokens
    if room < 1:
        raise ContextExceeded(
            {
                name: f"{prompt_tokens} tokens found, allowed are at most {model.max_context - 1}: "
                f"the context holds {model.max_context} with the answer"
            },
            model.max_context,
        )
    return room
