"""litellm, as its users call an endpoint of their own: python litellm_client.py BASE_URL"""

import json
import sys
from pathlib import Path
from typing import Any

import litellm
from answering import answer, failure

WANTED = json.loads(Path(__file__).with_name("requests.json").read_text())
GREEDY, SAMPLED = WANTED["greedy"], WANTED["sampled"]
ENDPOINT = {"api_base": sys.argv[1], "api_key": "any", "num_retries": 0}
litellm.suppress_debug_info = True


def chat(**options: Any) -> Any:
    model = f"openai/{options.pop('model', WANTED['model'])}"
    return litellm.completion(**{"model": model, "messages": WANTED["messages"], **ENDPOINT, **GREEDY, **options})


def complete(prompt: str, **options: Any) -> Any:
    model = f"text-completion-openai/{WANTED['model']}"
    return litellm.text_completion(**{"model": model, "prompt": prompt, **ENDPOINT, **GREEDY, **options})


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
    reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    return {
        "pieces": [choice.delta.content for choice in choices if choice.delta.content],
        "finish_reason": reasons[-1],
        "usage": usage_of(chunks[-1]),
    }


def stop() -> dict[str, Any]:
    choice = chat(stop=WANTED["stop"], max_tokens=16).choices[0]
    return {"text": choice.message.content, "finish_reason": choice.finish_reason}


def seeds() -> list[str]:
    other = SAMPLED | {"seed": WANTED["other_seed"]}
    return [chat(**options).choices[0].message.content for options in (SAMPLED, SAMPLED, other)]


def logprobs() -> list[Any]:
    entries = chat(logprobs=True, top_logprobs=2).choices[0].logprobs["content"]
    return [[entry["token"], entry["logprob"], len(entry["top_logprobs"])] for entry in entries]


def leave() -> list[str]:
    pieces: list[str] = []
    chunks = chat(stream=True, max_tokens=WANTED["endless_tokens"])
    for chunk in chunks:
        if chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
        if len(pieces) == WANTED["pieces_before_leaving"]:
            break
    # Its wrapper has no close of its own: leaving is closing the stream that it wraps.
    chunks.completion_stream.close()
    return pieces


def unicode_() -> list[str]:
    chunks = complete(WANTED["fox"], stream=True, max_tokens=WANTED["emoji_tokens"])
    return [chunk.choices[0].text for chunk in chunks if chunk.choices[0].text]


def too_long() -> dict[str, Any]:
    return failure(
        lambda: chat(messages=[{"role": "user", "content": "x" * WANTED["too_many_characters"]}]), status="status_code"
    )


answer(
    {
        "models": lambda: litellm.get_valid_models(
            check_provider_endpoint=True, custom_llm_provider="openai", api_base=sys.argv[1], api_key="any"
        ),
        "chat": whole_chat,
        "completion": whole_completion,
        "stream": stream,
        "two": lambda: {"texts": [choice.message.content for choice in chat(n=2, **SAMPLED).choices]},
        "stop": stop,
        "seeds": seeds,
        "logprobs": logprobs,
        "leave": leave,
        "unicode": unicode_,
        "large": lambda: whole_completion(WANTED["large"]["character"] * WANTED["large"]["count"]),
        "unknown_model": lambda: failure(lambda: chat(model="nobody"), status="status_code"),
        "bad_parameter": lambda: failure(lambda: chat(temperature=WANTED["below_zero"]), status="status_code"),
        "too_long": too_long,
    }
)
