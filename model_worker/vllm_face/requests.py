"""From a ``VllmEngine`` request to one of ours.

There, a number that is absent on the wire reads 0, so a 0 that makes no sense stands for the default. Whether values
are in bounds is for ``model_worker.requests`` to say; only what cannot be put into our words is refused here.
"""

import json
from typing import Any

import grpc

from octavo.worker.v1 import sampling_pb2, worker_pb2
from service.errors import ServiceError

SEED_RANGE = 1 << 64
# Ours by theirs; 0 is what an absent one reads, and our own default.
SAME_MEANING = ("top_k", "min_p", "presence_penalty", "frequency_penalty")
# 0 is out of bounds and stands for 1, no change.
ZERO_IS_NEUTRAL = ("top_p", "repetition_penalty")
MEDIA = ("mm_inputs", "extra_mm_inputs", "media_refs")
TRANSFERS = ("kv_transfer_params", "kv_transfer_params_json")

Problems = dict[str, str]


def own_request(request: Any) -> worker_pb2.GenerateRequest:
    """The same request in our words.

    Args:
        request: ``vllm.grpc.engine.GenerateRequest``. Its parameters about text have no place here: ``stops`` heeds the
            stop strings, and the rest is left to the gateway, which has the text.

    Raises:
        ServiceError: INVALID_ARGUMENT naming every field that this worker has no words for.
    """
    problems: Problems = {}
    params = request.sampling_params
    result = worker_pb2.GenerateRequest(
        request_id=request.request_id,
        token_ids=_prompt(request, problems),
        sampling=_sampling(params, problems),
        stop=_stop(params),
    )
    if params.n:
        result.n = params.n
    for name in ("logprobs", "prompt_logprobs"):
        if params.HasField(name):
            if (count := getattr(params, name)) < 0:
                problems[f"sampling_params.{name}"] = f"{count}, the whole vocabulary is not told"
            else:
                setattr(result, name, count)
    _check_unsupported(request, problems)
    if problems:
        message = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, message, reason="INVALID_REQUEST", fields=problems)
    return result


def _prompt(request: Any, problems: Problems) -> list[int]:
    if request.WhichOneof("input") == "text":
        problems["text"] = "the worker takes token ids: send tokenized.input_ids"
        return []
    ids = list(request.tokenized.input_ids)
    if request.sampling_params.HasField("truncate_prompt_tokens"):
        kept = request.sampling_params.truncate_prompt_tokens
        if kept < 1:
            problems["sampling_params.truncate_prompt_tokens"] = f"{kept}, must be at least 1"
        else:
            ids = ids[-kept:]
    return ids


def _sampling(params: Any, problems: Problems) -> sampling_pb2.SamplingParams:
    sampling = sampling_pb2.SamplingParams()
    for name in SAME_MEANING:
        setattr(sampling, name, getattr(params, name))
    for name in ZERO_IS_NEUTRAL:
        if value := getattr(params, name):
            setattr(sampling, name, value)
    if params.HasField("temperature"):
        sampling.temperature = params.temperature
    if params.HasField("seed"):
        sampling.seed = params.seed % SEED_RANGE  # theirs has a sign
    for token, bias in params.logit_bias.items():
        if token < 0:
            problems["sampling_params.logit_bias"] = f"{token} is no token id"
        else:
            sampling.logit_bias[token] = bias
    _grammar(params, sampling, problems)
    return sampling


def _stop(params: Any) -> sampling_pb2.StopConditions:
    stop = sampling_pb2.StopConditions(
        min_tokens=params.min_tokens, stop_token_ids=params.stop_token_ids, ignore_eos=params.ignore_eos
    )
    if params.HasField("max_tokens"):
        stop.max_tokens = params.max_tokens
    return stop


def _grammar(params: Any, sampling: sampling_pb2.SamplingParams, problems: Problems) -> None:
    match params.WhichOneof("constraint"):
        case None:
            pass
        case "json_schema":
            sampling.grammar.json_schema = params.json_schema
        case "json_object" if params.json_object:
            sampling.grammar.json_object = True
        case "regex":
            sampling.grammar.regex = params.regex
        case "grammar":
            sampling.grammar.lark = params.grammar
        case "choice":
            sampling.grammar.lark = one_of(list(params.choice.choices))
        case other:
            problems[f"sampling_params.{other}"] = "not supported"


def one_of(choices: list[str]) -> str:
    """The Lark grammar of a text that is one of ``choices``."""
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _check_unsupported(request: Any, problems: Problems) -> None:
    for name in MEDIA:
        if request.HasField(name) if name != "extra_mm_inputs" else request.extra_mm_inputs:
            problems[name] = "this worker takes text models only"
    for name in TRANSFERS:
        if request.HasField(name):
            problems[name] = "this worker neither sends KV nor receives it"
    if request.HasField("data_parallel_rank") and request.data_parallel_rank != 0:
        problems["data_parallel_rank"] = f"{request.data_parallel_rank}, a worker is one replica: rank 0"
