"""The sampling fields of a request, and log-probabilities as messages."""

import math
import secrets
from collections.abc import Iterable

from llguidance import LLMatcher

from model_worker.sampling.grammar import GrammarCompiler, GrammarError
from model_worker.sampling.params import SamplingParams
from model_worker.sampling.results import TokenLogprobs
from octavo.worker.v1 import sampling_pb2, worker_pb2
from service.channels import MAX_MESSAGE_BYTES

MAX_LOGPROBS = 20
# Logits are float32: by more they would be divided by infinity. All tokens are as likely long before.
MAX_TEMPERATURE = (2.0 - 2.0**-23) * 2.0**127
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
# Of all bad words together: each is looked at in every step.
MAX_BAD_WORD_IDS = 1 << 15
# Tag and length of an entry in its list, and what else the first message of a stream tells.
ENTRY_FRAME_BYTES = 3
REST_BYTES = 64 * 1024

Problems = dict[str, str]


def read_sampling(
    request: worker_pb2.GenerateRequest, vocab_size: int, grammars: GrammarCompiler, problems: Problems
) -> SamplingParams:
    """The parameters of sample 0; what is wrong with them is added to ``problems`` by the field's path."""
    wanted = request.sampling
    if request.HasField("resume"):
        seed = request.resume.seed
    else:
        seed = wanted.seed if wanted.HasField("seed") else secrets.randbits(63)
    return SamplingParams(
        temperature=min(_number(wanted, "temperature", 1.0, problems, low=0.0), MAX_TEMPERATURE),
        top_k=wanted.top_k,
        top_p=_share(wanted, "top_p", 1.0, problems),
        min_p=_number(wanted, "min_p", 0.0, problems, low=0.0, high=1.0),
        seed=seed,
        typical_p=_share(wanted, "typical_p", 1.0, problems),
        repetition_penalty=_above_zero(wanted, "repetition_penalty", 1.0, problems),
        presence_penalty=_number(wanted, "presence_penalty", 0.0, problems, low=-MAX_PENALTY, high=MAX_PENALTY),
        frequency_penalty=_number(wanted, "frequency_penalty", 0.0, problems, low=-MAX_PENALTY, high=MAX_PENALTY),
        logit_bias=_biases(wanted, vocab_size, problems),
        bad_words=_bad_words(wanted, vocab_size, problems),
        grammar=_grammar(request, grammars, problems),
        top_logprobs=_logprobs(request, "logprobs", problems),
        prompt_logprobs=_logprobs(request, "prompt_logprobs", problems),
    )


def prefix_salt(request: worker_pb2.GenerateRequest) -> str:
    """The salt of a request's prefix.

    Tokens found in the cache are not computed, so they have no logits: a request for prompt log-probabilities has a
    salt that nobody else can have. It finds nothing but what it computed itself, after a preemption, when the entries
    of those tokens are known; and nobody finds its blocks.
    """
    return secrets.token_hex(16) if request.HasField("prompt_logprobs") else request.salt


def check_prompt_logprobs(request: worker_pb2.GenerateRequest, vocab_size: int, problems: Problems) -> None:
    """Refuse more entries than the first message of a stream can hold: they come at once, when all is computed."""
    if not request.HasField("prompt_logprobs") or "prompt_logprobs" in problems:
        return
    top = request.prompt_logprobs
    longest = sampling_pb2.TokenLogprob(token_id=vocab_size - 1, logprob=-1.0)
    entry = sampling_pb2.TokenLogprobs(token_id=vocab_size - 1, logprob=-1.0, top=[longest] * top)
    size = (entry.ByteSize() + ENTRY_FRAME_BYTES) * (len(request.token_ids) - 1)
    if size > MAX_MESSAGE_BYTES - REST_BYTES:
        problems["prompt_logprobs"] = (
            f"{top} beside each of {len(request.token_ids)} tokens take {size} bytes, more than a message of "
            f"{MAX_MESSAGE_BYTES} holds: ask for fewer"
        )


def logprob_messages(entries: Iterable[TokenLogprobs]) -> list[sampling_pb2.TokenLogprobs]:
    """Log-probabilities as the wire has them."""
    return [
        sampling_pb2.TokenLogprobs(
            token_id=entry.token,
            logprob=entry.logprob,
            top=[sampling_pb2.TokenLogprob(token_id=token, logprob=logprob) for token, logprob in entry.top],
        )
        for entry in entries
    ]


def _given(wanted: sampling_pb2.SamplingParams, name: str, default: float) -> float:
    value: float = getattr(wanted, name)
    return value if wanted.HasField(name) else default


def _number(
    wanted: sampling_pb2.SamplingParams,
    name: str,
    default: float,
    problems: Problems,
    *,
    low: float,
    high: float = math.inf,
) -> float:
    value = _given(wanted, name, default)
    if not (math.isfinite(value) and low <= value <= high):
        bounds = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        problems[f"sampling.{name}"] = f"{value}, must be a finite number {bounds}"
    return value


def _share(wanted: sampling_pb2.SamplingParams, name: str, default: float, problems: Problems) -> float:
    value = _given(wanted, name, default)
    if not 0.0 < value <= 1.0:
        problems[f"sampling.{name}"] = f"{value}, must be above 0 and at most 1"
    return value


def _above_zero(wanted: sampling_pb2.SamplingParams, name: str, default: float, problems: Problems) -> float:
    value = _given(wanted, name, default)
    if not (math.isfinite(value) and value > 0.0):
        problems[f"sampling.{name}"] = f"{value}, must be a finite number above 0"
    return value


def _biases(wanted: sampling_pb2.SamplingParams, vocab_size: int, problems: Problems) -> tuple[tuple[int, float], ...]:
    for token, bias in wanted.logit_bias.items():
        if token >= vocab_size:
            problems["sampling.logit_bias"] = f"id {token} is outside the vocabulary of {vocab_size}"
        elif not -MAX_BIAS <= bias <= MAX_BIAS:
            problems["sampling.logit_bias"] = f"{bias} for id {token}, must be from {-MAX_BIAS:g} to {MAX_BIAS:g}"
    return tuple(sorted(wanted.logit_bias.items()))


def _bad_words(wanted: sampling_pb2.SamplingParams, vocab_size: int, problems: Problems) -> tuple[tuple[int, ...], ...]:
    if sum(len(word.ids) for word in wanted.bad_words) > MAX_BAD_WORD_IDS:
        problems["sampling.bad_words"] = f"more than {MAX_BAD_WORD_IDS} ids"
        return ()
    words = tuple(tuple(word.ids) for word in wanted.bad_words)
    if not all(words):
        problems["sampling.bad_words"] = "empty, a word has at least one id"
    elif (largest := max((max(word) for word in words), default=0)) >= vocab_size:
        problems["sampling.bad_words"] = f"{largest} is outside the vocabulary of {vocab_size}"
    return words


def _grammar(request: worker_pb2.GenerateRequest, grammars: GrammarCompiler, problems: Problems) -> LLMatcher | None:
    if not request.sampling.HasField("grammar"):
        return None
    if request.stop.ignore_eos:
        problems["stop.ignore_eos"] = "a text with a grammar ends with an end-of-sequence token"
    wanted = request.sampling.grammar
    kind = wanted.WhichOneof("kind") or ""
    try:
        return grammars.compile(kind, str(getattr(wanted, kind, "")))
    except GrammarError as error:
        problems["sampling.grammar"] = str(error)
        return None


def _logprobs(request: worker_pb2.GenerateRequest, name: str, problems: Problems) -> int | None:
    if not request.HasField(name):
        return None
    count: int = getattr(request, name)
    if count > MAX_LOGPROBS:
        problems[name] = f"{count}, must be from 0 to {MAX_LOGPROBS}"
    return count
