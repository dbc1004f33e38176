"""A client without stubs: all it knows of the service is what reflection tells. python reflection_client.py ADDRESS"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from answering import answer
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

WANTED = json.loads(Path(__file__).with_name("requests.json").read_text())
GREEDY, SAMPLED = WANTED["greedy"], WANTED["sampled"]
channel = grpc.insecure_channel(sys.argv[1])
database = ProtoReflectionDescriptorDatabase(channel)
(SERVICE,) = [name for name in database.get_services() if name.endswith(".GatewayService")]
service = DescriptorPool(database).FindServiceByName(SERVICE)


def call(method: str, request: dict[str, Any]) -> Any:
    """Call a method with a request in JSON's shape; an iterator for streams."""
    description = service.methods_by_name[method]
    asks, answers = (
        message_factory.GetMessageClass(kind) for kind in (description.input_type, description.output_type)
    )
    open_call = channel.unary_stream if description.server_streaming else channel.unary_unary
    multicallable = open_call(
        f"/{SERVICE}/{method}", request_serializer=asks.SerializeToString, response_deserializer=answers.FromString
    )
    return multicallable(json_format.ParseDict(request, asks()))


def chat(model: str = "", **options: Any) -> Any:
    return call("Chat", {"model": model, "messages": WANTED["messages"], "options": GREEDY | options})


def generate(prompt: str, **options: Any) -> Any:
    return call("Generate", {"prompt": prompt, "options": GREEDY | options})


def text_of(responses: list[Any], index: int = 0) -> str:
    return "".join(getattr(one, "content", "") or getattr(one, "text", "") for one in responses if one.index == index)


def whole_of(responses: list[Any]) -> dict[str, Any]:
    last = responses[-1]
    reason = json_format.MessageToDict(last)["finishReason"].removeprefix("FINISH_REASON_").lower()
    usage = [last.usage.prompt_tokens, last.usage.completion_tokens]
    return {"text": text_of(responses), "finish_reason": reason, "usage": usage}


def stream() -> dict[str, Any]:
    responses = list(chat())
    facts = whole_of(responses)
    del facts["text"]
    return facts | {"pieces": [response.content for response in responses if response.content]}


def two() -> dict[str, Any]:
    responses = list(chat(**SAMPLED, n=2))
    return {"texts": [text_of(responses, index) for index in range(2)]}


def stop() -> dict[str, Any]:
    facts = whole_of(list(chat(stop=WANTED["stop"], max_tokens=16)))
    del facts["usage"]
    return facts


def seeds() -> list[str]:
    other = SAMPLED | {"seed": WANTED["other_seed"]}
    return [text_of(list(chat(**options))) for options in (SAMPLED, SAMPLED, other)]


def logprobs() -> list[Any]:
    entries = [entry for response in chat(logprobs=2) for entry in response.logprobs]
    return [[entry.token.text, entry.token.logprob, len(entry.top)] for entry in entries]


def leave() -> list[str]:
    pieces: list[str] = []
    responses = chat(max_tokens=WANTED["endless_tokens"])
    for response in responses:
        if response.content:
            pieces.append(response.content)
        if len(pieces) == WANTED["pieces_before_leaving"]:
            responses.cancel()
            break
    return pieces


def failed(work: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> dict[str, Any]:
        try:
            list(work())
        except grpc.RpcError as error:
            return {"error": "RpcError", "code": error.code().name, "message": error.details()}
        raise AssertionError("the call did not fail")

    return run


answer(
    {
        "models": lambda: [model.id for model in call("ListModels", {}).models],
        "chat": lambda: whole_of(list(chat())),
        "completion": lambda: whole_of(list(generate(WANTED["letter"]))),
        "stream": stream,
        "two": two,
        "stop": stop,
        "seeds": seeds,
        "logprobs": logprobs,
        "leave": leave,
        "unicode": lambda: [
            response.text for response in generate(WANTED["fox"], max_tokens=WANTED["emoji_tokens"]) if response.text
        ],
        "large": lambda: whole_of(list(generate(WANTED["large"]["character"] * WANTED["large"]["count"]))),
        "unknown_model": failed(lambda: chat(model="nobody")),
        "bad_parameter": failed(lambda: chat(temperature=WANTED["below_zero"])),
        "too_long": failed(lambda: generate("x" * WANTED["too_many_characters"])),
    }
)
