"""grpclib, with stubs by its own plugin in STUBS: python grpclib_client.py ADDRESS STUBS"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[2])

from answering import answer
from grpclib.client import Channel
from grpclib.exceptions import GRPCError

from octavo.gateway.v1 import gateway_pb2
from octavo.gateway.v1.gateway_grpc import GatewayServiceStub

WANTED = json.loads(Path(__file__).with_name("requests.json").read_text())
GREEDY, SAMPLED = WANTED["greedy"], WANTED["sampled"]
HOST, _, PORT = sys.argv[1].rpartition(":")
REASONS = {gateway_pb2.FINISH_REASON_STOP: "stop", gateway_pb2.FINISH_REASON_LENGTH: "length"}
Work = Callable[[GatewayServiceStub], Coroutine[Any, Any, Any]]


def with_stub(work: Work) -> Callable[[], Any]:
    """Work on a connection of its own."""

    async def run() -> Any:
        async with Channel(HOST, int(PORT)) as channel:
            return await work(GatewayServiceStub(channel))

    return lambda: asyncio.run(run())


def chat_request(model: str = "", **options: Any) -> gateway_pb2.ChatRequest:
    messages = [gateway_pb2.ChatMessage(**message) for message in WANTED["messages"]]
    wanted = gateway_pb2.GenerateOptions(**{**GREEDY, **options})
    return gateway_pb2.ChatRequest(model=model, messages=messages, options=wanted)


def generate_request(prompt: str, **options: Any) -> gateway_pb2.GenerateRequest:
    return gateway_pb2.GenerateRequest(prompt=prompt, options=gateway_pb2.GenerateOptions(**{**GREEDY, **options}))


def text_of(responses: list[Any], index: int = 0) -> str:
    return "".join(getattr(one, "content", "") or getattr(one, "text", "") for one in responses if one.index == index)


def whole_of(responses: list[Any]) -> dict[str, Any]:
    last = responses[-1]
    usage = [last.usage.prompt_tokens, last.usage.completion_tokens]
    return {"text": text_of(responses), "finish_reason": REASONS[last.finish_reason], "usage": usage}


async def models(stub: GatewayServiceStub) -> list[str]:
    return [model.id for model in (await stub.ListModels(gateway_pb2.ListModelsRequest())).models]


async def whole_chat(stub: GatewayServiceStub) -> dict[str, Any]:
    return whole_of(await stub.Chat(chat_request()))


async def whole_completion(stub: GatewayServiceStub) -> dict[str, Any]:
    return whole_of(await stub.Generate(generate_request(WANTED["letter"])))


async def stream(stub: GatewayServiceStub) -> dict[str, Any]:
    responses = []
    async with stub.Chat.open() as call:
        await call.send_message(chat_request(), end=True)
        async for response in call:
            responses.append(response)
    facts = whole_of(responses)
    del facts["text"]
    return facts | {"pieces": [response.content for response in responses if response.content]}


async def two(stub: GatewayServiceStub) -> dict[str, Any]:
    responses = await stub.Chat(chat_request(**SAMPLED, n=2))
    return {"texts": [text_of(responses, index) for index in range(2)]}


async def stop(stub: GatewayServiceStub) -> dict[str, Any]:
    facts = whole_of(await stub.Chat(chat_request(stop=WANTED["stop"], max_tokens=16)))
    del facts["usage"]
    return facts


async def seeds(stub: GatewayServiceStub) -> list[str]:
    other = SAMPLED | {"seed": WANTED["other_seed"]}
    return [text_of(await stub.Chat(chat_request(**options))) for options in (SAMPLED, SAMPLED, other)]


async def logprobs(stub: GatewayServiceStub) -> list[Any]:
    responses = await stub.Chat(chat_request(logprobs=2))
    entries = [entry for response in responses for entry in response.logprobs]
    return [[entry.token.text, entry.token.logprob, len(entry.top)] for entry in entries]


async def leave(stub: GatewayServiceStub) -> list[str]:
    pieces: list[str] = []
    async with stub.Chat.open() as call:
        await call.send_message(chat_request(max_tokens=WANTED["endless_tokens"]), end=True)
        async for response in call:
            if response.content:
                pieces.append(response.content)
            if len(pieces) == WANTED["pieces_before_leaving"]:
                await call.cancel()
                break
    return pieces


async def unicode_(stub: GatewayServiceStub) -> list[str]:
    responses = await stub.Generate(generate_request(WANTED["fox"], max_tokens=WANTED["emoji_tokens"]))
    return [response.text for response in responses if response.text]


async def large(stub: GatewayServiceStub) -> dict[str, Any]:
    prompt = WANTED["large"]["character"] * WANTED["large"]["count"]
    return whole_of(await stub.Generate(generate_request(prompt)))


def failed(work: Work) -> Callable[[], Any]:
    def call() -> dict[str, Any]:
        try:
            with_stub(work)()
        except GRPCError as error:
            return {"error": type(error).__name__, "code": error.status.name, "message": error.message}
        raise AssertionError("the call did not fail")

    return call


answer(
    {
        "models": with_stub(models),
        "chat": with_stub(whole_chat),
        "completion": with_stub(whole_completion),
        "stream": with_stub(stream),
        "two": with_stub(two),
        "stop": with_stub(stop),
        "seeds": with_stub(seeds),
        "logprobs": with_stub(logprobs),
        "leave": with_stub(leave),
        "unicode": with_stub(unicode_),
        "large": with_stub(large),
        "unknown_model": failed(lambda stub: stub.Chat(chat_request(model="nobody"))),
        "bad_parameter": failed(lambda stub: stub.Chat(chat_request(temperature=WANTED["below_zero"]))),
        "too_long": failed(lambda stub: stub.Generate(generate_request("x" * WANTED["too_many_characters"]))),
    }
)
