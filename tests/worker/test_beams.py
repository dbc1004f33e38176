"""Beam search: the choices alone against every text there is, and on the scheduler against the choices alone."""

import itertools
import math
import random

import pytest
from device_memory import VOCABULARY, most_likely
from scheduler_loop import Loop, limits, lone_beams, make_beams, make_sequence

from model_worker.engine.beams import BeamSearch, Candidates
from model_worker.engine.sequence import EndReason, Sequence
from model_worker.sampling.params import StopConditions

STOPS = frozenset({3, 4})


def texts(loop: Loop, request: Sequence) -> list[list[int]]:
    """What the caller of a beam search was told, by rank."""
    told = {
        one.sequence.sampling.index: list(one.tokens) for one in loop.progress if one.sequence.group is request.group
    }
    return [told[rank] for rank in sorted(told)]


@pytest.mark.unit
def test_a_search_as_wide_as_the_tree_finds_the_best_text_of_all() -> None:
    """B38: early choices must not stick. 3 tokens, 5 steps: 243 texts, and the ranking turns around at step 3."""
    vocabulary, length = 3, 5

    def logprobs(text: tuple[int, ...]) -> Candidates:
        best = 0 if len(text) < 3 else 2
        # What was best until the turn leads to what is worst after it.
        cost = [
            1.0 + abs(token - best) + (2.0 * text.count(0) if len(text) >= 3 else 0.0) for token in range(vocabulary)
        ]
        return sorted(((token, -one) for token, one in enumerate(cost)), key=lambda pair: -pair[1])

    def total(text: tuple[int, ...]) -> float:
        return sum(dict(logprobs(text[:at]))[text[at]] for at in range(length))

    best = sorted(itertools.product(range(vocabulary), repeat=length), key=lambda text: -total(text))
    search = BeamSearch(vocabulary**length, 1.0, False, StopConditions(), max_tokens=length)
    beams: list[tuple[int, ...]] = [()]
    while beams:
        going_on = search.step([(one, logprobs(one)) for one in beams])
        beams = [(*beams[one.parent], one.token) for one in going_on]
    assert [text.logprob for text in search.finished] == pytest.approx([total(text) for text in best])
    # The greedy text, a search of width 1, is another one: there the early choice does stick.
    greedy = BeamSearch(1, 1.0, False, StopConditions(), max_tokens=length)
    beams = [()]
    while beams:
        beams = [(*beams[0], one.token) for one in greedy.step([(beams[0], logprobs(beams[0]))])]
    assert greedy.finished[0].logprob < search.finished[0].logprob - 1


GO_ON, STEPS, TURN = 7, 20, 10


def scripted_cost(text: list[int], token: int) -> float:
    """What a token costs after a text. Only the first four tokens are cheap as a beginning, and only one goes on well;
    the smaller the first token was, the cheaper the text is until the turn and the dearer behind it."""
    if not text:
        return 1 + 0.1 * token if token < 4 else 9 + 0.01 * token
    if token != GO_ON:
        return 6 + 0.01 * token
    return 0.1 if len(text) < TURN else 0.1 + 0.2 * max(0, 3 - text[0])


@pytest.mark.unit
def test_a_ranking_that_turns_around_is_followed_by_two_clients_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """B38: four beams over 20 steps, on the scheduler; what leads for 10 steps comes last in the end."""

    def scripted(tokens: list[int], count: int) -> list[tuple[int, float]]:
        costs = {token: scripted_cost(tokens[5:], token) for token in range(VOCABULARY)}
        return [(token, -costs[token]) for token in sorted(costs, key=costs.__getitem__)[:count]]

    # A step's cost depends on the first token alone, so the best text behind each is found step by step: all texts of
    # this kind are looked at. One step off it costs 5.9 more than the last of the first four.
    best = []
    for first in range(VOCABULARY):
        text, total = [first], scripted_cost([], first)
        while len(text) < STEPS:
            token = min(range(VOCABULARY), key=lambda one: scripted_cost(text, one))
            total += scripted_cost(text, token)
            text = [*text, token]
        best.append((total, text))
    best.sort()
    assert [text[0] for _, text in best[:4]] == [3, 2, 1, 0]
    assert best[3][0] < best[0][0] + 5.9

    monkeypatch.setattr("device_memory.most_likely", scripted)
    loop = Loop(limits(num_blocks=60, max_sequences=9))
    requests = [make_beams([1, 2, 3, 4, last], STEPS, 4, frozenset()) for last in (5, 6)]
    for request in requests:
        loop.scheduler.add(request)
    loop.drain()
    for request in requests:
        assert texts(loop, request) == [text for _, text in best[:4]]
    loop.assert_whole()


@pytest.mark.unit
@pytest.mark.parametrize("early", [False, True])
def test_beams_on_the_scheduler_choose_as_alone_and_leave_the_pool_whole(early: bool) -> None:
    loop = Loop(limits(num_blocks=40, max_sequences=9))
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 9]]  # two clients at once, with a common start, and one who samples
    requests = [make_beams(prompt, 12, 4, STOPS, early) for prompt in prompts]
    other = make_sequence([7, 8], max_tokens=20)
    for request in [*requests, other]:
        loop.scheduler.add(request)
    loop.drain()
    for prompt, request in zip(prompts, requests, strict=True):
        assert texts(loop, request) == lone_beams(prompt, 12, 4, STOPS, early)
    assert loop.scheduler.statistics.forks >= 3 * 2
    loop.assert_whole()


@pytest.mark.unit
def test_nothing_stops_before_min_tokens() -> None:
    search = BeamSearch(2, 1.0, True, StopConditions(STOPS, min_tokens=4), max_tokens=8)
    beams: list[list[int]] = [[]]
    while beams:
        going_on = search.step([(one, most_likely(one, VOCABULARY)) for one in beams])
        beams = [[*beams[one.parent], one.token] for one in going_on]
    assert all(len(text.tokens) > 4 or not text.stopped for text in search.finished)
    assert not any(token in STOPS for text in search.finished for token in text.tokens[:4])


@pytest.mark.unit
def test_an_aborted_search_ends_all_its_texts() -> None:
    loop = Loop(limits(num_blocks=40))
    request = make_beams([1, 2, 3, 4, 5], 50, 3, frozenset())
    loop.scheduler.add(request)
    for _ in range(9):
        loop.turn()
    ended = loop.scheduler.abort(request)
    assert [one.sequence.sampling.index for one in ended] == [0, 1, 2]
    assert {one.sequence.end_reason for one in ended} == {EndReason.ABORTED}
    assert loop.scheduler.abort(request) == []
    loop.drain()
    loop.assert_whole()


@pytest.mark.property
@pytest.mark.parametrize("host_blocks", [0, 30])
def test_beams_give_way_and_come_back_as_if_nothing_had_happened(host_blocks: int) -> None:
    preempted = rejected = 0
    for number in range(25):
        dice = random.Random(f"beams {host_blocks} {number}")
        size = dice.choice([1, 2, 3])
        # Five searches of 2 or 3 beams, up to 8 + 12 tokens each: 5 x 20 slots and what their beams do not share; 36.
        chosen = limits(num_blocks=36 // size, block_size=size, max_sequences=12, max_chunk=dice.randrange(2, 9))
        loop = Loop(chosen, reserve=False, host_blocks=host_blocks, late_swaps=dice.random() < 0.5)
        asked = []
        for _ in range(5):
            prompt = [dice.randrange(20, 30) for _ in range(dice.randrange(4, 9))]
            asked.append((prompt, dice.randrange(6, 13), dice.randrange(2, 4)))
        requests = [make_beams(*one, STOPS) for one in asked]
        for request in requests:
            loop.scheduler.add(request)
            for _ in range(dice.randrange(3)):
                loop.turn()
            if dice.random() < 0.2:
                loop.lose_manager(answered=dice.random() < 0.5, steps_in_hand=dice.randrange(3))
        loop.drain()
        for one, request in zip(asked, requests, strict=True):
            if request.end_reason is EndReason.REJECTED:  # its beams part early and outgrow the pool
                rejected += 1
            else:
                assert texts(loop, request) == lone_beams(*one, STOPS)
        loop.assert_whole()
        preempted += loop.scheduler.statistics.preemptions
    print(preempted, rejected)
    assert preempted > 25 > rejected


@pytest.mark.unit
@pytest.mark.parametrize(
    ("penalty", "score"), [(1e308, 0.0), (2_000.0, 0.0), (-2_000.0, -math.inf), (-1e308, -math.inf)]
)
def test_a_length_penalty_beyond_the_floats_ranks_and_ends_a_search(penalty: float, score: float) -> None:
    """2 ** 2000 is beyond the largest float, and 2 ** -2000 below the smallest: a text's score is 0 or -inf then."""
    search = BeamSearch(2, penalty, False, StopConditions(frozenset({0})), max_tokens=3)
    beams: list[list[int]] = [[]]
    while beams:
        going_on = search.step([(one, [(1, -0.5), (2, -1.0), (0, -1.5), (3, -2.0)]) for one in beams])
        beams = [[*beams[one.parent], one.token] for one in going_on]
    assert [text.score for text in search.finished] == [score, score]
