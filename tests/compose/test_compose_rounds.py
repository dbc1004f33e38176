"""Sixteen live streams, and one service after another is lost under them: every way, in random order.

A round: 16 greedy streams of TOKENS tokens from a client container; one fault when each has brought EDGE and none has
ended; then everything is asked for:

- A lost manager or worker is not seen: every stream ends OK, with the tokens and the text of its lone run.
- A lost gateway ends its streams with UNAVAILABLE: what came is the beginning of the lone run's.
- A new request is served within 10 s of the fault's end; later both workers are back.
- Within 10 s of the last stream's end no pool holds a block or a sequence for anybody, and every invariant holds.

Every kind of fault comes once in each 14 rounds. SEED, which is printed, repeats the order; ROUNDS is 20.
"""

import os
import random
import time
from typing import NamedTuple

import pytest
from compose_faults import FAULTS, Fault
from compose_project import Project
from compose_streams import Stream, Streams, when_whole

pytestmark = pytest.mark.compose

ROUNDS = int(os.environ.get("ROUNDS", "20"))
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 31))
WORKERS, STREAMS, TOKENS, EDGE = 2, 16, 64, 8
# 10 s is what a machine of its own has to keep.
WHOLE_SECONDS = float(os.environ.get("WHOLE_SECONDS", "10"))
WORKERS_SECONDS = 90.0
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


class Played(NamedTuple):
    """How a round went.

    Attributes:
        moved: streams that went on on another worker.
        pause: the longest time that a stream was without one, in seconds.
        served: seconds from the fault's end to a new request's first token; None where none was served.
        workers: to both workers being usable.
        at_rest: seconds from the last stream's end to pools that hold nothing for anybody.
    """

    ok: int
    moved: int
    pause: float
    served: float | None
    workers: float | None
    at_rest: float | None

    @property
    def late(self) -> bool:
        return self.served is None or self.served > WHOLE_SECONDS or self.workers is None or self.at_rest is None

    def row(self) -> str:
        times = "".join(f"{'never' if time is None else f'{time:.2f}':>11}" for time in self[3:])
        return f"{self.ok:4}{self.moved:7}{self.pause:9.2f}{times}"


def play(project: Project, fault: Fault, alone: list[Stream], dice: random.Random) -> Played:
    """One round. What a stream must not bring or end with fails at once."""
    running = Streams(project, PROMPTS, TOKENS).until_each_has(EDGE)
    assert running.running == STREAMS
    fault.act(project, dice)
    over = time.time()
    found = when_whole(project, ("served", "workers"), WORKERS, over, WORKERS_SECONDS)
    streams = running.to_the_end()
    ended = max(over, time.time())
    (times,) = found.take(WORKERS_SECONDS + WHOLE_SECONDS)
    (rest,) = when_whole(project, ("sound",), WORKERS, ended, WHOLE_SECONDS).take(3 * WHOLE_SECONDS)
    check(fault, streams, alone)
    return Played(
        ok=sum(stream.code == "OK" for stream in streams),
        moved=sum(stream.migrations > 0 for stream in streams),
        pause=max(stream.paused for stream in streams),
        served=times["served"],
        workers=times["workers"],
        at_rest=rest["sound"],
    )


@pytest.mark.timeout(90 * ROUNDS + 600)
def test_what_is_lost_under_sixteen_streams_is_made_good(project: Project, alone: list[Stream]) -> None:
    print(f"\n{ROUNDS} rounds, SEED={SEED}")
    titles = "".join(f"{title:>11}" for title in ("served s", "workers s", "at rest s"))
    print(f"{'':3}{'fault':36}{'OK':>4}{'moved':>7}{'pause s':>9}{titles}", flush=True)
    dice = random.Random(SEED)
    late = []
    for number, fault in enumerate(order(ROUNDS, dice), 1):
        played = play(project, fault, alone, dice)
        print(f"{number:2} {fault.name:36}{played.row()}", flush=True)
        if played.late:
            late.append(f"{number} {fault.name}: {played}")
    assert late == []
