"""Sixteen live streams, and one service after another is lost under them: every way, in random order.

A round: 16 greedy streams of TOKENS tokens from a client container; one fault when each has brought EDGE and none has
ended; then everything is asked for:

- A lost manager or worker is not seen: every stream ends OK, with the tokens and the text of its lone run.
- A lost gateway ends its streams with UNAVAILABLE: what came is the beginning of the lone run's.
- A new request is served within 10 s of the fault's end; later both workers are back.
- Within 10 s of the last stream's end no pool holds a block or a sequence for anybody, and every invariant holds.

Every kind of fault comes once in each 13 rounds. SEED, which is printed, repeats the order; ROUNDS is 20.
"""

import os
import random
import time

import pytest
from compose_faults import FAULTS, Fault
from compose_project import Project
from compose_streams import Stream, Streams, when_whole

pytestmark = pytest.mark.compose

ROUNDS = int(os.environ.get("ROUNDS", "20"))
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 31))
WORKERS, STREAMS, TOKENS, EDGE = 2, 16, 64, 8
WHOLE_SECONDS, WORKERS_SECONDS = 10.0, 90.0
PLACES = (
    *("Rome", "Paris", "Cairo", "Athens", "London", "Tokyo", "Delhi", "Lima"),
    *("Berlin", "Madrid", "Lisbon", "Vienna", "Dublin", "Oslo", "Warsaw", "Prague"),
)
PROMPTS = [f"The city of {place} is best known for" for place in PLACES]


def order(rounds: int, dice: random.Random) -> list[Fault]:
    """Every kind before any comes again."""
    chosen: list[Fault] = []
    while len(chosen) < rounds:
        chosen += dice.sample(FAULTS, len(FAULTS))
    return chosen[:rounds]


@pytest.fixture(scope="module")
def alone(project: Project) -> list[Stream]:
    """What each prompt gives with nobody beside it."""
    streams = [Streams(project, [prompt], TOKENS).to_the_end()[0] for prompt in PROMPTS]
    assert [stream.code for stream in streams] == ["OK"] * STREAMS
    assert len({stream.text for stream in streams}) == STREAMS
    return streams


def check(fault: Fault, streams: list[Stream], alone: list[Stream]) -> None:
    for stream, lone in zip(streams, alone, strict=True):
        assert stream.code in fault.ends_streams, f"{fault.name}: {stream.code} {stream.details}"
        if stream.code == "OK":
            assert stream.tokens == lone.tokens, fault.name
            assert stream.text == lone.text, fault.name
        else:
            assert stream.tokens == lone.tokens[: len(stream.tokens)], fault.name
            assert lone.text.startswith(stream.text), fault.name


def play(project: Project, fault: Fault, alone: list[Stream], dice: random.Random) -> dict[str, float]:
    """One round. Returns its figures, in seconds."""
    running = Streams(project, PROMPTS, TOKENS).until_each_has(EDGE)
    assert running.running == STREAMS
    fault.act(project, dice)
    over = time.time()
    found = when_whole(project, ("served", "workers"), WORKERS, over, WORKERS_SECONDS)
    streams = running.to_the_end()
    ended = time.time()
    (times,) = found.take(WORKERS_SECONDS + WHOLE_SECONDS)
    (rest,) = when_whole(project, ("sound",), WORKERS, max(over, ended), WHOLE_SECONDS).take(3 * WHOLE_SECONDS)
    check(fault, streams, alone)
    assert times["served"] is not None, fault.name
    assert times["served"] < WHOLE_SECONDS, f"{fault.name}: served after {times['served']:.1f} s"
    assert times["workers"] is not None, f"{fault.name}: a worker has not come back"
    assert rest["sound"] is not None, f"{fault.name}: somebody is gone and something is still held"
    codes = [stream.code for stream in streams]
    return {
        "OK": codes.count("OK"),
        "moved": sum(stream.migrations > 0 for stream in streams),
        "pause": max(stream.paused for stream in streams),
        "served": times["served"],
        "workers": times["workers"],
        "sound": rest["sound"],
    }


@pytest.mark.timeout(60 * ROUNDS + 600)
def test_what_is_lost_under_sixteen_streams_is_made_good(project: Project, alone: list[Stream]) -> None:
    print(f"\n{ROUNDS} rounds, SEED={SEED}")
    print(f"{'':3}{'fault':34}{'OK':>4}{'moved':>7}{'pause s':>9}{'served s':>10}{'workers s':>11}{'at rest s':>11}")
    dice = random.Random(SEED)
    for number, fault in enumerate(order(ROUNDS, dice), 1):
        told = play(project, fault, alone, dice)
        print(
            f"{number:2} {fault.name:34}{told['OK']:4.0f}{told['moved']:7.0f}{told['pause']:9.2f}{told['served']:10.2f}"
            f"{told['workers']:11.2f}{told['sound']:11.2f}",
            flush=True,
        )
