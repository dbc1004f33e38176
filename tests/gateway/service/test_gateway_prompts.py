"""Prompts that do not fit, and those that just do. One byte is one token, the context holds 10."""

import asyncio
import dataclasses
import json
import threading

import pytest
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from gateway.errors import InvalidRequest
from gateway.models import ServedModel
from gateway.parameters import Parameters
from gateway.prompts import (
    IDS_AT_ONCE,
    INLINE_CHARACTERS,
    LONG_CHARACTERS,
    Prompt,
    check_vocabulary,
    from_messages,
    from_text,
    from_token_ids,
    to_text,
    token_budget,
)
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer

pytestmark = pytest.mark.unit

DEFAULT_MAX_TOKENS = 5


@pytest.fixture
def model(toy_tokenizer: Tokenizer, toy_template: ChatTemplate) -> ServedModel:
    return ServedModel("bytes", "1", 258, 10, toy_tokenizer, toy_template)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "budget"),
    [
        (1, None, 5),  # the default fits
        (7, None, 3),  # the default is cut to the room
        (9, None, 1),
        (9, 1, 1),
        (1, 9, 9),
    ],
)
def test_the_budget_of_what_fits(model: ServedModel, prompt_tokens: int, max_tokens: int | None, budget: int) -> None:
    parameters = Parameters(max_tokens=max_tokens)
    assert token_budget(model, Prompt(range(prompt_tokens), None), parameters, DEFAULT_MAX_TOKENS) == budget


@pytest.mark.parametrize(
    ("prompt_tokens", "parameters", "name", "numbers"),
    [
        (0, Parameters(), "prompt", ()),
        (10, Parameters(), "prompt", ("10", "9")),
        (10, Parameters(max_tokens=1), "prompt", ("10", "9")),
        (8, Parameters(max_tokens=3), "max_tokens", ("3", "2", "10", "8")),
        (1, Parameters(min_tokens=6), "min_tokens", ("6", "5")),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(
    model: ServedModel, prompt_tokens: int, parameters: Parameters, name: str, numbers: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        token_budget(model, Prompt(range(prompt_tokens), None), parameters, DEFAULT_MAX_TOKENS)
    assert list(caught.value.problems) == [name]
    assert all(number in caught.value.problems[name] for number in numbers)


async def test_text_is_bounded_in_bytes_and_must_be_unicode(model: ServedModel) -> None:
    assert len((await from_text(model, "é" * 4, max_bytes=8)).token_ids) == 8
    with pytest.raises(InvalidRequest, match="9 bytes found, allowed are at most 8"):
        await from_text(model, "é" * 4 + "x", max_bytes=8)
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        await from_text(model, "\ud800", max_bytes=8)


async def test_a_long_text_gives_the_same_tokens_as_its_parts(model: ServedModel) -> None:
    text = "ab" * INLINE_CHARACTERS
    prompt = await from_text(model, text, max_bytes=len(text))
    assert list(prompt.token_ids) == model.tokenizer.encode("ab") * INLINE_CHARACTERS


async def test_long_texts_are_encoded_two_at_a_time_and_hold_nobody_else_up(model: ServedModel) -> None:
    class SlowForLong(Tokenizer):
        """Encodes a long text, as if for ever, until it is let go."""

        def __init__(self) -> None:
            self.special_tokens = {}
            self.begun, self.most, self.under_way = threading.Semaphore(0), 0, 0
            self.lock, self.let_go = threading.Lock(), threading.Event()

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            if len(text) <= LONG_CHARACTERS:
                return [len(text)]
            with self.lock:
                self.under_way += 1
                self.most = max(self.most, self.under_way)
            self.begun.release()
            assert self.let_go.wait(60)
            with self.lock:
                self.under_way -= 1
            return [len(text)]

    slow = SlowForLong()
    loaded = dataclasses.replace(model, tokenizer=slow)
    long, others = "x" * (LONG_CHARACTERS + 1), "x" * LONG_CHARACTERS
    # More than asyncio has threads for what it is given.
    under_way = [asyncio.create_task(from_text(loaded, long, len(long))) for _ in range(40)]
    try:
        for _ in range(2):
            assert await asyncio.to_thread(slow.begun.acquire, timeout=60)
        async with asyncio.timeout(60):
            assert (await from_text(loaded, others, len(others))).token_ids == [LONG_CHARACTERS]
    finally:
        slow.let_go.set()
    assert [prompt.token_ids for prompt in await asyncio.gather(*under_way)] == [[len(long)]] * 40
    assert slow.most == 2


def test_the_first_id_outside_the_vocabulary_is_named(model: ServedModel) -> None:
    check_vocabulary(model, [0, 257], "token_ids")
    check_vocabulary(model, [], "token_ids")
    with pytest.raises(InvalidRequest, match=r"token_ids\[1\]: 258 found, token ids are below 258"):
        check_vocabulary(model, [0, 258, 259], "token_ids")
    # The second slice's third id.
    with pytest.raises(InvalidRequest, match=rf"ids\[{IDS_AT_ONCE + 2}\]: 258 found"):
        check_vocabulary(model, [0] * (IDS_AT_ONCE + 2) + [258], "ids")


async def test_too_many_ids_are_refused_unseen(model: ServedModel) -> None:
    # Looking at a million million numbers would take hours.
    ids = range(10**12)
    with pytest.raises(InvalidRequest, match="prompt: 1000000000000 tokens found, allowed are at most 9"):
        await from_token_ids(model, ids)
    with pytest.raises(
        InvalidRequest, match="token_ids: 1000000000000 ids found, allowed are at most the context's 10"
    ):
        await to_text(model, ids, "token_ids", skip_special_tokens=False)


async def test_a_context_of_ids_is_text_and_special_tokens_can_be_left_out(model: ServedModel) -> None:
    ids = [*model.tokenizer.encode("abcdefghi"), 256]
    assert await to_text(model, ids, "token_ids", skip_special_tokens=False) == "abcdefghi</s>"
    assert await to_text(model, ids, "token_ids", skip_special_tokens=True) == "abcdefghi"
    assert await to_text(model, [], "token_ids", skip_special_tokens=True) == ""
    with pytest.raises(InvalidRequest, match=r"token_ids\[1\]: 258 found"):
        await to_text(model, [0, 258], "token_ids", skip_special_tokens=True)


async def test_the_loop_runs_while_many_ids_become_text(model: ServedModel) -> None:
    count = 20 * IDS_AT_ONCE
    large = dataclasses.replace(model, max_context=count)
    (letter,) = model.tokenizer.encode("a")
    task = asyncio.create_task(to_text(large, [letter] * count, "token_ids", skip_special_tokens=False))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert await task == "a" * count
    # Done in the loop, it would take the first turn alone.
    assert turns > 2


async def test_text_beyond_a_message_is_refused(model: ServedModel) -> None:
    # "<|turn|>" is one id and 8 bytes: 8 Mi + 1 of them would be 64 MiB and 8 bytes.
    count = (8 << 20) + 1
    large = dataclasses.replace(model, max_context=count)
    with pytest.raises(InvalidRequest, match=f"token_ids: {8 * count} bytes of text found, allowed are at most"):
        await to_text(large, [257] * count, "token_ids", skip_special_tokens=False)


async def test_a_conversation_ends_open_for_its_answer_or_its_continuation(model: ServedModel) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    answered = await from_messages(model, messages, 1000, continue_final_message=False)
    assert answered.text == "<|turn|>user:hi<|turn|>assistant:yo<|turn|>assistant:"
    continued = await from_messages(model, messages, 1000, continue_final_message=True)
    assert continued.text == "<|turn|>user:hi<|turn|>assistant:yo"
    # A turn mark is one special token: 2 + 7 + 12.
    assert len(continued.token_ids) == 21


async def test_a_template_that_refuses_is_the_requests_problem(model: ServedModel) -> None:
    with pytest.raises(InvalidRequest, match="prompt: this template refuses"):
        await from_messages(model, [{"role": "user", "content": "refuse me"}], 1000, continue_final_message=False)
    with pytest.raises(InvalidRequest, match="bytes found, allowed are at most 20"):
        await from_messages(model, [{"role": "user", "content": "hi"}], 20, continue_final_message=False)


async def test_the_template_knows_a_developer_as_the_system(model: ServedModel) -> None:
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    prompt = await from_messages(model, messages, 1000, continue_final_message=False)
    assert prompt.text == "<|turn|>system:be brief<|turn|>user:hi<|turn|>assistant:"
    # The caller's messages are left as they are.
    assert messages[0]["role"] == "developer"


BOS = "<s>"


@pytest.fixture
def beginning(model: ServedModel, toy_files: dict[str, bytes]) -> ServedModel:
    """A model whose tokenizer puts bos before a text, and whose template writes it too."""
    backend = Backend.from_str(toy_files["tokenizer.json"].decode())
    backend.add_special_tokens([AddedToken(BOS, special=True)])
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 258)])
    files = {
        "tokenizer.json": backend.to_str().encode(),
        "tokenizer_config.json": json.dumps({"bos_token": BOS}).encode(),
    }
    tokenizer = Tokenizer(files)
    template = ChatTemplate("{{ messages[-1].content }}", tokenizer.special_tokens)
    return dataclasses.replace(model, vocab_size=259, tokenizer=tokenizer, template=template)


@pytest.mark.parametrize(
    ("text", "add_special_tokens", "begins", "chat_begins"),
    [
        # How many bos: of a prompt, and of a conversation whose template writes the text as it is.
        ("a", None, 1, 0),
        ("a", True, 1, 1),
        ("a", False, 0, 0),
        (f"{BOS}a", None, 1, 1),
        (f"{BOS}a", True, 1, 1),
        (f"{BOS}a", False, 1, 1),
        # A text that is meant to have two keeps them.
        (f"{BOS}{BOS}a", None, 2, 2),
    ],
)
async def test_a_text_that_begins_with_bos_gets_no_second_one(
    beginning: ServedModel, text: str, add_special_tokens: bool | None, begins: int, chat_begins: int
) -> None:
    (a,) = beginning.tokenizer.encode("a", add_special_tokens=False)
    prompt = await from_text(beginning, text, 1000, add_special_tokens=add_special_tokens)
    assert prompt.token_ids == [258] * begins + [a]
    messages = [{"role": "user", "content": text}]
    chat = await from_messages(
        beginning, messages, 1000, continue_final_message=False, add_special_tokens=add_special_tokens
    )
    assert chat.token_ids == [258] * chat_begins + [a]
