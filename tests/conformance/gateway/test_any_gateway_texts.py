"""Text through any gateway: streams add up to the text and to their counts, for Generate and for Chat."""

import json
import re

import pytest
from text_calls import Client, clean_piece, turns

from octavo.gateway.v1 import gateway_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.model]

PROMPT = "The quick brown fox jumps over the lazy dog."
FORMAT = gateway_pb2.ResponseFormat


def test_a_stream_adds_up_to_its_text_and_its_usage(client: Client) -> None:
    ids = client.tokenize(PROMPT)
    texts = client.generate(PROMPT, {"request_id": "conformance-text"}, max_tokens=24)
    header = texts.messages[0].header
    assert (header.request_id, header.model) == ("conformance-text", client.model.id)
    assert header.created > 1_700_000_000
    answer = texts.only
    assert (answer.reason, answer.last.stop_reason) == ("LENGTH", "")
    assert answer.text == client.detokenize([*ids, *answer.tokens], skip_special_tokens=True)[len(PROMPT) :]
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids), len(answer.tokens)) == (len(ids), 24)
    assert 0 <= usage.cached_tokens < len(ids)
    assert 0 <= usage.queue_seconds <= usage.total_seconds
    assert 0 < usage.first_token_seconds <= usage.total_seconds
    assert (usage.migrations, usage.paused_seconds) == (0, 0)
    assert usage.prefill_chunks >= 1
    assert usage.max_batch >= 1


def test_text_and_its_token_ids_are_one_prompt(client: Client) -> None:
    assert client.generate(client.tokenize(PROMPT)).only.text == client.generate(PROMPT).only.text


def test_token_ids_come_back_as_text(client: Client) -> None:
    for text in (PROMPT, "naïve café, 東京 and 😀"):
        assert client.detokenize(client.tokenize(text), skip_special_tokens=True) == text


def test_a_request_without_a_name_gets_one(client: Client) -> None:
    names = {client.generate(PROMPT, max_tokens=1).messages[0].header.request_id for _ in range(2)}
    assert len(names) == 2
    assert all(names)


def test_echo_sends_the_prompt_first(client: Client) -> None:
    plain, echoed = client.generate(PROMPT).only, client.generate(PROMPT, {"echo": True})
    assert echoed.messages[0].text == PROMPT
    assert not echoed.messages[0].token_ids
    assert echoed.only.text == PROMPT + plain.text


def test_a_seed_repeats(client: Client) -> None:
    def sampled(seed: int) -> str:
        return client.generate(PROMPT, temperature=1.0, seed=seed, max_tokens=16).only.text

    assert sampled(-5) == sampled(-5)
    assert len({sampled(seed) for seed in range(4)}) > 1


def test_answers_come_side_by_side_and_end_one_by_one(client: Client) -> None:
    texts = client.generate(PROMPT, n=3, temperature=1.0, seed=2)
    assert sorted(texts.answers) == [0, 1, 2]
    for answer in texts.answers.values():
        assert answer.usage.completion_tokens == len(answer.tokens) == 8
        assert answer.usage.prompt_tokens == len(client.tokenize(PROMPT))
    # The first of them is what the same seed gives alone.
    assert client.generate(PROMPT, temperature=1.0, seed=2).only.text == texts.answers[0].text


def test_a_stop_string_ends_the_text_and_is_no_part_of_it(client: Client) -> None:
    free = client.generate(PROMPT, max_tokens=48).only
    stop = clean_piece(free.text)
    answer = client.generate(PROMPT, max_tokens=48, stop=["never \u2603 written", stop]).only
    assert (answer.reason, answer.last.stop_reason) == ("STOP", stop)
    assert answer.text == free.text[: free.text.index(stop)]
    assert answer.tokens == free.tokens[: len(answer.tokens)]
    assert answer.usage.completion_tokens == len(answer.tokens) <= 48


def test_a_stop_token_ends_the_text_and_is_told(client: Client) -> None:
    free = client.generate(PROMPT, max_tokens=12).only
    stop = free.tokens[4]
    answer = client.generate(PROMPT, max_tokens=12, stop_token_ids=[stop]).only
    assert (answer.reason, answer.last.stop_reason) == ("STOP", str(stop))
    assert answer.tokens == free.tokens[: free.tokens.index(stop) + 1]


def test_logprobs_are_one_per_token_and_their_bytes_are_the_text(client: Client) -> None:
    answer = client.generate(PROMPT, logprobs=2, max_tokens=16).only
    assert [entry.token.token_id for entry in answer.logprobs] == answer.tokens
    told = b"".join(entry.token.bytes for entry in answer.logprobs)
    assert told.decode(errors="replace") == answer.text
    for entry in answer.logprobs:
        assert [one.logprob for one in entry.top] == sorted((one.logprob for one in entry.top), reverse=True)
        assert len(entry.top) == 2
        assert entry.token.logprob == pytest.approx(entry.top[0].logprob, abs=1e-5)
    assert not client.generate(PROMPT).only.logprobs


def test_prompt_logprobs_come_once_with_the_first_tokens(client: Client) -> None:
    ids = client.tokenize(PROMPT)
    first, *others = [message for message in client.generate(PROMPT, prompt_logprobs=0).messages if message.token_ids]
    assert [entry.token.token_id for entry in first.prompt_logprobs] == ids[1:]
    assert not any(message.prompt_logprobs for message in others)


def test_a_prefix_is_shared_within_a_salt_only(client: Client, salt: str) -> None:
    prompt = PROMPT * 6

    def cached(suffix: str) -> int:
        return client.generate(prompt, cache_salt=f"{salt}-{suffix}").only.usage.cached_tokens

    assert [cached("a"), cached("b")] == [0, 0]
    assert cached("a") > 0


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (FORMAT(regex="[ab]{3}-[0-9]{2}"), r"[ab]{3}-[0-9]{2}"),
        (FORMAT(choice=gateway_pb2.Choice(texts=["yes", "no, never"])), r"yes|no, never"),
        (FORMAT(lark='start: "x" /[0-9]{2}/'), r"x[0-9]{2}"),
    ],
    ids=["regex", "choice", "lark"],
)
def test_a_constraint_holds(client: Client, constraint: gateway_pb2.ResponseFormat, pattern: str) -> None:
    options = {"response_format": constraint, "ignore_eos": False, "temperature": 1.0, "seed": 3, "max_tokens": 64}
    answer = client.generate(PROMPT, **options).only
    assert re.fullmatch(pattern, answer.text), answer.text
    assert answer.reason == "STOP"


def test_a_schema_holds(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"on": {"type": "boolean"}, "kind": {"enum": ["cat", "dog"]}},
        "required": ["on", "kind"],
        "additionalProperties": False,
    }
    wanted = FORMAT(json_schema=json.dumps(schema))
    answer = client.generate(PROMPT, response_format=wanted, ignore_eos=False, max_tokens=200).only
    made = json.loads(answer.text)
    assert made.keys() == {"on", "kind"}
    assert isinstance(made["on"], bool)
    assert made["kind"] in ("cat", "dog")


def conversation(client: Client) -> None:
    if not client.model.has_chat_template:
        pytest.skip("the model has no chat template")


def test_a_chat_is_its_rendered_prompt_and_names_the_role_once(client: Client) -> None:
    conversation(client)
    asked = gateway_pb2.TokenizeRequest(model=client.model.id, chat=gateway_pb2.ChatInput(messages=turns("Hello!")))
    tokenized = client.stub.Tokenize(asked, timeout=60)
    assert "Hello!" in tokenized.rendered
    texts = client.chat("Hello!", n=2, temperature=1.0, seed=1)
    for index in (0, 1):
        roles = [message.role for message in texts.messages if message.index == index]
        assert roles == ["assistant"] + [""] * (len(roles) - 1)
        assert texts.answers[index].usage.prompt_tokens == len(tokenized.token_ids)
    # The same tokens as a prompt give the same answer.
    again = client.generate(list(tokenized.token_ids), temperature=1.0, seed=1).only
    assert (again.tokens, again.text) == (texts.answers[0].tokens, texts.answers[0].text)


def test_a_final_message_can_be_continued(client: Client) -> None:
    conversation(client)
    chat = gateway_pb2.ChatInput(messages=turns("Hello!", "Well, I"), continue_final_message=True)
    tokenized = client.stub.Tokenize(gateway_pb2.TokenizeRequest(model=client.model.id, chat=chat), timeout=60)
    assert tokenized.rendered.endswith("Well, I")
    answer = client.chat("Hello!", "Well, I", fields={"continue_final_message": True}).only
    assert answer.usage.prompt_tokens == len(tokenized.token_ids)
    assert answer.text == client.generate(list(tokenized.token_ids)).only.text


def test_models_are_listed(client: Client) -> None:
    model = client.model
    assert model.id
    assert model.ready_workers >= 1
    assert model.vocab_size > max(client.tokenize(PROMPT))
    assert model.max_context > len(client.tokenize(PROMPT))
