"""kill -9 of one of two workers under streams of every kind: grammars, samples, penalties, log-probabilities, stops.

What a worker keeps of a stream beside its blocks (the state of a grammar, counts of tokens, which samples have ended)
must come back on the other one from the tokens alone; what the gateway keeps (half of a stop string or of a character)
must meet them where it was.
"""

import asyncio
import contextlib
import itertools
import json
import random
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import grpc.aio
import pytest
from byte_vocabulary import byte_tokenizer
from heard_streams import SIZES, AllEnded, Heard, Request, generating, listen, wanted, workers_ready
from standing_fleet import Post, StandingFleet
from tiny_checkpoints import tiny_checkpoint

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(900)]

# Streams of each kind, so that one of them is on the worker that dies.
COPIES, PROMPT, OUTPUT = 3, 24, 100
# Tokens that each of its streams has brought by then, about.
KILLED_AT = 12
# Two are enough, unless streams ended before the kill came, or begun after it.
KILLS = 8
SEED = 20_261_130


# What a template of a model says that was trained to call functions.
TEMPLATE = (
    "{% if tools %}Call one by <tool_call>{% endif %}{% for message in messages %}{{ message.content }}{% endfor %}"
)
LISTS = {"type": "array", "items": {"enum": ["ab", "yes"]}, "minItems": 30, "maxItems": 30}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingFleet]:
    model = tiny_checkpoint("llama", tmp_path_factory.mktemp("tiny"), **SIZES)
    byte_tokenizer().save(str(model / "tokenizer.json"))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    with ExitStack() as stack:
        yield StandingFleet(model, stack)


def kinds() -> dict[str, Request]:
    """One request of each kind that a worker, or the gateway, keeps something of its own for."""
    dice = random.Random(SEED)
    common: dict[str, Any] = {"max_tokens": OUTPUT, "seed": 7}
    formats = gateway_pb2.ResponseFormat
    options: dict[str, dict[str, Any]] = {
        "samples": {"n": 2, "ignore_eos": True},
        "schema": {"response_format": formats(json_schema=json.dumps(LISTS)), "max_tokens": 400},
        "regex": {"response_format": formats(regex="([a-f]{4}-){16}[0-9]{4}")},
        "penalties": {"frequency_penalty": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.3, "ignore_eos": True},
        "logprobs": {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1, "ignore_eos": True},
        # The stop tokens, half of all, are chosen soon after the 60th token, which counts from the prompt.
        "min_tokens": {"min_tokens": 60, "stop_token_ids": range(128)},
        "best_of": {"best_of": 2, "ignore_eos": True},
        # All but its last character may be the beginning of what is held back.
        "stop": {"stop": ["fed-cba-fed"], "response_format": formats(regex="([abc]{3}-[def]{3}-){9}fed-cba-fed-a+")},
    }
    made: dict[str, Request] = {kind: wanted(dice, PROMPT, **{**common, **own}) for kind, own in options.items()}
    function = gateway_pb2.Tool(
        name="sort",
        parameters_json_schema=json.dumps({"type": "object", "properties": {"all": LISTS}, "required": ["all"]}),
        strict=True,
    )
    made["tools"] = gateway_pb2.ChatRequest(
        messages=[gateway_pb2.ChatMessage(role="user", content="sort that")],
        tools=[function],
        tool_choice=gateway_pb2.ToolChoice(function="sort"),
        options=gateway_pb2.GenerateOptions(**{**common, "max_tokens": 400}),
    )
    return made


async def kill_under_every_kind(fleet: StandingFleet) -> tuple[dict[str, Heard], set[str]]:
    """What every kind gives alone, and the kinds of which a stream went on on another worker, to the same."""
    async with grpc.aio.insecure_channel(fleet.gateway.address) as channel:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        await workers_ready(gateway, 2)
        alone = {kind: await listen(gateway, request, Heard()) for kind, request in kinds().items()}
        moved: set[str] = set()
        for victim in itertools.islice(itertools.cycle(fleet.workers), KILLS):
            moved |= await kill_once(gateway, victim, alone)
            if moved == set(kinds()):
                break
            # A kind whose streams all began late, or on the worker that stayed, has the other's end to meet.
            await asyncio.to_thread(victim.start)
            await workers_ready(gateway, 2)
    return alone, moved


async def kill_once(gateway: gateway_pb2_grpc.GatewayServiceStub, victim: Post, alone: Mapping[str, Heard]) -> set[str]:
    """One kill; the kinds of which a stream moved. Every stream is held against what its kind gives alone."""
    named = [(kind, request) for kind, request in kinds().items() for _ in range(COPIES)]
    heard = [Heard() for _ in named]
    async with generating(victim.process) as progress:
        streams = [
            asyncio.create_task(listen(gateway, request, one)) for (_, request), one in zip(named, heard, strict=True)
        ]
        # About half of the streams are its own.
        with contextlib.suppress(AllEnded):
            await progress.reaches(KILLED_AT * len(named) // 2, streams)
        victim.process.signal(signal.SIGKILL)
    await asyncio.gather(*streams)
    for (kind, _), one in zip(named, heard, strict=True):
        try:
            one.check(alone[kind])
        except AssertionError as error:
            error.add_note(f"of kind {kind}, which moved {one.migrations} times")
            raise
    return {kind for (kind, _), one in zip(named, heard, strict=True) if one.migrations}


def test_every_kind_of_stream_goes_on_exactly(fleet: StandingFleet) -> None:
    """B54: nothing is told twice, nothing left out, and a grammar goes on inside its text."""
    alone, moved = asyncio.run(kill_under_every_kind(fleet))
    # The requests are what they are called: long enough to be cut, and ended by their own kind of end.
    assert len(json.loads(alone["schema"].texts[0])) == 30
    assert len(json.loads(alone["tools"].calls[0][0][1])["all"]) == 30
    assert re.fullmatch("([abc]{3}-[def]{3}-){9}", alone["stop"].texts[0])
    assert 60 <= len(alone["min_tokens"].tokens[0]) < OUTPUT
    assert moved == set(kinds())
