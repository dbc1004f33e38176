"""The official Python client: python openai_python.py BASE_URL"""

import json
import sys
from pathlib import Path
from typing import Any

import openai
from answering import answer, failure

WANTED = json.loads(Path(__file__).with_name("requests.json").read_text())
MODEL, MESSAGES, GREEDY, SAMPLED = (WANTED[name] for name in ("model", "messages", "greedy", "sampled"))
client = openai.OpenAI(base_url=sys.argv[1], api_key="any", max_retries=0)


def chat(**options: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **GREEDY, **options})


def complete(prompt: str, **options: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": prompt, **GREEDY, **options})


def usage_of(answer: Any) -> list[int]:
    return [answer.usage.prompt_tokens, answer.usage.completion_tokens]


def whole_chat() -> dict[str, Any]:
    found = chat()
    choice = found.choices[0]
    return {"text": choice.message.content, "finish_reason": choice.finish_reason, "usage": usage_of(found)}


def whole_completion(prompt: str = WANTED["letter"]) -> dict[str, Any]:
    found = complete(prompt)
    choice = found.choices[0]
    return {"text": choice.text, "finish_reason": choice.finish_reason, "usage": usage_of(found)}


def stream() -> dict[str, Any]:
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return {
        "pieces": [choice.delta.content for choice in choices if choice.delta.content],
        "finish_reason": choices[-1].finish_reason,
        "usage": usage_of(chunks[-1]),
    }


def two() -> dict[str, Any]:
    found = chat(n=2, **SAMPLED)
    return {"texts": [choice.message.content for choice in found.choices]}


def stop() -> dict[str, Any]:
    choice = chat(stop=WANTED["stop"], max_tokens=16).choices[0]
    return {"text": choice.message.content, "finish_reason": choice.finish_reason}


def seeds() -> list[str]:
    other = SAMPLED | {"seed": WANTED["other_seed"]}
    return [chat(**options).choices[0].message.content for options in (SAMPLED, SAMPLED, other)]


def logprobs() -> list[Any]:
    entries = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    return [[entry.token, entry.logprob, len(entry.top_logprobs)] for entry in entries]


def leave() -> list[str]:
    pieces = []
    with chat(stream=True, max_tokens=WANTED["endless_tokens"]) as chunks:
        for chunk in chunks:
            if chunk.choices[0].delta.content:
                pieces.append(chunk.choices[0].delta.content)
            if len(pieces) == WANTED["pieces_before_leaving"]:
                return pieces
    return pieces


def unicode_() -> list[str]:
    chunks = complete(WANTED["fox"], stream=True, max_tokens=WANTED["emoji_tokens"])
    return [chunk.choices[0].text for chunk in chunks if chunk.choices[0].text]


def unknown_model() -> dict[str, Any]:
    return failure(lambda: chat(model="nobody"), status="status_code", code="code")


def bad_parameter() -> dict[str, Any]:
    return failure(lambda: chat(temperature=WANTED["below_zero"]), status="status_code", param="param")


def too_long() -> dict[str, Any]:
    return failure(lambda: complete("x" * WANTED["too_many_characters"]), status="status_code", code="code")


answer(
    {
        "models": lambda: [model.id for model in client.models.list()],
        "chat": whole_chat,
        "completion": whole_completion,
        "stream": stream,
        "two": two,
        "stop": stop,
        "seeds": seeds,
        "logprobs": logprobs,
        "leave": leave,
        "unicode": unicode_,
        "large": lambda: whole_completion(WANTED["large"]["character"] * WANTED["large"]["count"]),
        "unknown_model": unknown_model,
        "bad_parameter": bad_parameter,
        "too_long": too_long,
    }
)
