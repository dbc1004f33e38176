"""langchain-openai: ChatOpenAI for chats and OpenAI for completions. python langchain_client.py BASE_URL"""

import json
import sys
from pathlib import Path
from typing import Any

from answering import answer, failure
from langchain_core.messages import convert_to_messages
from langchain_openai import ChatOpenAI, OpenAI

WANTED = json.loads(Path(__file__).with_name("requests.json").read_text())
GREEDY, SAMPLED = WANTED["greedy"], WANTED["sampled"]
ENDPOINT = {"base_url": sys.argv[1], "api_key": "any", "max_retries": 0}
MESSAGES = [(message["role"], message["content"]) for message in WANTED["messages"]]


def chat_model(**options: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"model": WANTED["model"], **ENDPOINT, **GREEDY, **options})


def completion_model(**options: Any) -> OpenAI:
    return OpenAI(**{"model": WANTED["model"], **ENDPOINT, **GREEDY, **options})


def usage_of(message: Any) -> list[int]:
    return [message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]]


def whole_chat() -> dict[str, Any]:
    found = chat_model().invoke(MESSAGES)
    reason = found.response_metadata["finish_reason"]
    return {"text": found.content, "finish_reason": reason, "usage": usage_of(found)}


def whole_completion(prompt: str = WANTED["letter"]) -> dict[str, Any]:
    found = completion_model().generate([prompt])
    (generation,) = found.generations[0]
    usage = found.llm_output["token_usage"]
    return {
        "text": generation.text,
        "finish_reason": generation.generation_info["finish_reason"],
        "usage": [usage["prompt_tokens"], usage["completion_tokens"]],
    }


def stream() -> dict[str, Any]:
    chunks = list(chat_model(stream_usage=True).stream(MESSAGES))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return {
        "pieces": [chunk.content for chunk in chunks if chunk.content],
        "finish_reason": whole.response_metadata["finish_reason"],
        "usage": usage_of(whole),
    }


def two() -> dict[str, Any]:
    found = chat_model(**SAMPLED, n=2).generate([convert_to_messages(MESSAGES)])
    return {"texts": [generation.text for generation in found.generations[0]]}


def stop() -> dict[str, Any]:
    found = chat_model(max_tokens=16).invoke(MESSAGES, stop=WANTED["stop"])
    return {"text": found.content, "finish_reason": found.response_metadata["finish_reason"]}


def seeds() -> list[str]:
    other = SAMPLED | {"seed": WANTED["other_seed"]}
    return [str(chat_model(**options).invoke(MESSAGES).content) for options in (SAMPLED, SAMPLED, other)]


def logprobs() -> list[Any]:
    found = chat_model(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    entries = found.response_metadata["logprobs"]["content"]
    return [[entry["token"], entry["logprob"], len(entry["top_logprobs"])] for entry in entries]


def leave() -> list[str]:
    pieces: list[str] = []
    chunks = chat_model(max_tokens=WANTED["endless_tokens"]).stream(MESSAGES)
    for chunk in chunks:
        if chunk.content:
            pieces.append(str(chunk.content))
        if len(pieces) == WANTED["pieces_before_leaving"]:
            break
    chunks.close()
    return pieces


def too_long() -> dict[str, Any]:
    long = [("user", "x" * WANTED["too_many_characters"])]
    return failure(lambda: chat_model().invoke(long), status="status_code", code="code")


answer(
    {
        "chat": whole_chat,
        "completion": whole_completion,
        "stream": stream,
        "two": two,
        "stop": stop,
        "seeds": seeds,
        "logprobs": logprobs,
        "leave": leave,
        "unicode": lambda: [
            piece for piece in completion_model(max_tokens=WANTED["emoji_tokens"]).stream(WANTED["fox"]) if piece
        ],
        "large": lambda: whole_completion(WANTED["large"]["character"] * WANTED["large"]["count"]),
        "unknown_model": lambda: failure(
            lambda: chat_model(model="nobody").invoke(MESSAGES), status="status_code", code="code"
        ),
        "bad_parameter": lambda: failure(
            lambda: chat_model(temperature=WANTED["below_zero"]).invoke(MESSAGES), status="status_code", param="param"
        ),
        "too_long": too_long,
    }
)
