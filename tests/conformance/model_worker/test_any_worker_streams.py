"""The shape of a stream: its first message, its last ones, what they count, and what was cached."""

import pytest
from worker_calls import Answer, Asker

pytestmark = [pytest.mark.e2e, pytest.mark.model]


def test_a_stream_begins_once_and_ends_with_its_counts(asker: Asker) -> None:
    answer = asker.ask(asker.prompt(12), 9, request_id="conformance-1")
    assert {message.header.request_id for message in answer.messages} == {"conformance-1"}
    assert answer.messages[0].header.worker_id == asker.model.header.worker_id
    assert answer.started.prompt_tokens == 12
    sample = answer.only
    assert (sample.reason, len(sample.tokens)) == ("LENGTH", 9)
    assert sample.finished is not None
    assert not sample.finished.HasField("stop_token_id")
    assert not sample.finished.HasField("cumulative_logprob")
    stats = sample.finished.stats
    assert (stats.prompt_tokens, stats.completion_tokens, stats.cached_tokens) == (12, 9, answer.started.cached_tokens)
    # The first token comes with the last chunk of the prompt, each later one with a step of its own.
    assert stats.prefill_chunks >= 1
    assert stats.steps >= stats.prefill_chunks + 8
    assert stats.max_batch >= 1
    assert 0 <= stats.queue_seconds <= stats.first_token_seconds <= stats.total_seconds


def test_tokens_are_of_the_vocabulary(asker: Asker) -> None:
    tokens = asker.ask(asker.prompt(), 32, sampling={"temperature": 1.0, "seed": 3}).tokens
    assert max(tokens) < asker.model.vocab_size


def test_a_request_without_a_name_gets_one(asker: Asker) -> None:
    names = {asker.ask(asker.prompt(), 1).messages[0].header.request_id for _ in range(2)}
    assert len(names) == 2
    assert all(names)


def test_samples_end_one_by_one(asker: Asker) -> None:
    answer = asker.ask(asker.prompt(), 6, n=3, sampling={"temperature": 1.0, "seed": 5})
    assert sorted(answer.samples) == [0, 1, 2]
    for sample in answer.samples.values():
        assert (sample.reason, len(sample.tokens)) == ("LENGTH", 6)
        assert sample.finished is not None
        assert sample.finished.stats.completion_tokens == 6
        assert sample.finished.stats.prompt_tokens == answer.started.prompt_tokens


def test_a_stop_token_ends_a_sample_and_is_its_last(asker: Asker) -> None:
    ids = asker.prompt()
    free = asker.ask(ids, 16).tokens
    stop = free[5]
    at = free.index(stop)
    answer = asker.ask(ids, 16, stop={"stop_token_ids": [stop]})
    assert (answer.tokens, answer.only.reason) == (free[: at + 1], "STOP")
    assert answer.only.finished is not None
    assert answer.only.finished.stop_token_id == stop


def test_no_stop_token_is_chosen_before_min_tokens(asker: Asker) -> None:
    ids = asker.prompt()
    stop = asker.ask(ids, 1).tokens[0]
    held = asker.ask(ids, 12, stop={"stop_token_ids": [stop], "min_tokens": 6}).tokens
    assert len(held) >= 6
    assert stop not in held[:6]


def test_the_end_of_sequence_ends_a_sample_unless_ignored(asker: Asker) -> None:
    if not asker.model.eos_token_ids:
        pytest.skip("the model has no end-of-sequence token")
    eos = asker.model.eos_token_ids[0]
    ids, bias = asker.prompt(), {"logit_bias": {eos: 100.0}}
    ended = asker.ask(ids, 4, sampling=bias, stop={"ignore_eos": False})
    assert (ended.tokens, ended.only.reason) == ([eos], "STOP")
    on = asker.ask(ids, 4, sampling=bias)
    assert (on.tokens, on.only.reason) == ([eos] * 4, "LENGTH")


def test_without_max_tokens_a_sample_goes_to_the_end_of_the_context(asker: Asker) -> None:
    if asker.model.max_context > 8_192:
        pytest.skip("the context is long")
    ids = asker.prompt(asker.model.max_context - 1)
    for room, prompt in ((3, ids[:-2]), (1, ids)):
        answer = asker.ask(prompt, None)
        assert (len(answer.tokens), answer.only.reason) == (room, "LENGTH")


def test_a_prompt_is_found_again_but_for_its_last_token(asker: Asker) -> None:
    """Design 3.2: of a prompt found whole n - 1 tokens are cached; otherwise all full blocks are."""
    block = asker.model.block_size
    whole, longer = asker.prompt(2 * block), asker.prompt(2 * block + 1)
    for ids, cached in ((whole, 2 * block - 1), (longer, 2 * block)):
        cold, warm = asker.ask(ids), asker.ask(ids)
        assert (cold.started.cached_tokens, warm.started.cached_tokens) == (0, cached)
        assert warm.tokens == cold.tokens


def test_generated_tokens_are_found_by_the_next_turn(asker: Asker) -> None:
    block = asker.model.block_size
    first = asker.prompt(block)
    turn = asker.ask(first, block + 1).tokens
    # All tokens but the last sampled one were computed: two full blocks.
    assert asker.ask([*first, *turn, *asker.prompt(1)]).started.cached_tokens == 2 * block


@pytest.mark.parametrize("root", ["tenant", "salt"])
def test_a_prefix_is_not_shared_across_tenants_and_salts(asker: Asker, root: str) -> None:
    ids = asker.prompt(2 * asker.model.block_size)
    names = [asker.apart(), asker.apart()]
    cached = [asker.ask(ids, 1, **{root: name}).started.cached_tokens for name in (*names, names[0])]
    assert cached == [0, 0, len(ids) - 1]


def test_the_counts_of_the_worker_add_up(asker: Asker) -> None:
    """Nobody else asks meanwhile."""
    before = asker.settled()
    answers = [asker.ask(asker.prompt(10), 7), asker.ask(asker.prompt(10), 7, n=2, sampling={"temperature": 1.0})]
    after = asker.settled()
    assert after.finished_requests - before.finished_requests == 2
    assert after.prompt_tokens - before.prompt_tokens == 20
    assert after.generated_tokens - before.generated_tokens == sum(_count(answer) for answer in answers) == 21
    assert after.steps > before.steps
    assert after.aborted_requests == before.aborted_requests


def _count(answer: Answer) -> int:
    return sum(len(sample.tokens) for sample in answer.samples.values())
