"""From a ``GenerateRequest`` to a sequence: every bad field is named in one error, before anything is queued."""

import itertools
import secrets
from dataclasses import dataclass, field

import grpc

from model_worker.engine.sequence import Sequence
from model_worker.samples import read_counts, with_samples
from model_worker.sampling.grammar import GrammarCompiler
from model_worker.sampling.params import StopConditions
from model_worker.sampling_fields import check_prompt_logprobs, prefix_salt, read_sampling
from octavo.worker.v1 import worker_pb2
from service.errors import ServiceError

MAX_ID_BYTES = 128


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request may ask of this worker.

    Attributes:
        vocab_size: bounds token ids.
        max_context: most tokens of prompt and output together; the pool's capacity bounds it too.
        eos_token_ids: end a sample unless it ignores them.
        max_samples: the most samples or beams of one request.
    """

    vocab_size: int
    max_context: int
    eos_token_ids: frozenset[int]
    max_samples: int = 1


@dataclass(slots=True)
class RequestReader:
    """Validates requests and makes sequences of them; without a compiler it refuses grammars.

    Any thread may call it; a request with a grammar may take a second.
    """

    limits: ModelLimits
    grammars: GrammarCompiler = field(default_factory=lambda: GrammarCompiler(None, 0, ()))
    _arrivals: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def read(self, request: worker_pb2.GenerateRequest) -> Sequence:
        """The sequence a request asks for, or the first one of the group.

        Raises:
            ServiceError: INVALID_ARGUMENT naming every bad field.
        """
        problems: dict[str, str] = {}
        self._check_prompt(request, problems)
        self._check_unsupported(request, problems)
        for name in ("request_id", "tenant", "salt", "adapter"):
            if len(getattr(request, name).encode()) > MAX_ID_BYTES:
                problems[name] = f"longer than {MAX_ID_BYTES} bytes"
        limits = self.limits
        room = limits.max_context - len(request.token_ids)
        counts = read_counts(request, limits.max_samples, room, limits.vocab_size, problems)
        sampling = read_sampling(request, limits.vocab_size, self.grammars, problems)
        check_prompt_logprobs(request, limits.vocab_size, problems)
        stop = self._stop(request, problems)
        max_tokens = request.stop.max_tokens if request.stop.HasField("max_tokens") else self.limits.max_context
        if max_tokens < 1:
            problems["stop.max_tokens"] = "0, must be at least 1"
        elif (longest := max(map(len, counts.begun.values()), default=0)) >= max_tokens:
            problems["resume.samples"] = f"{longest} tokens so far, but max_tokens is {max_tokens}"
        if problems:
            message = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
            raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, message, reason="INVALID_REQUEST", fields=problems)
        prompt = list(request.token_ids)
        first = Sequence(
            request_id=request.request_id or secrets.token_hex(8),
            tokens=prompt,
            prompt_length=len(prompt),
            limit=min(len(prompt) + max_tokens, self.limits.max_context),
            sampling=sampling,
            stop=stop,
            arrival=next(self._arrivals),
            priority=request.priority,
            tenant=request.tenant,
            salt=prefix_salt(request),
            adapter=request.adapter,
        )
        return with_samples(first, counts, request)

    def _check_prompt(self, request: worker_pb2.GenerateRequest, problems: dict[str, str]) -> None:
        count = len(request.token_ids)
        if count == 0:
            problems["token_ids"] = "empty, a prompt has at least one token"
        elif count + 1 > self.limits.max_context:
            problems["token_ids"] = (
                f"{count} tokens and one to generate exceed the context of {self.limits.max_context} tokens"
            )
        elif (largest := max(request.token_ids)) >= self.limits.vocab_size:
            problems["token_ids"] = f"{largest} is outside the vocabulary of {self.limits.vocab_size}"

    def _check_unsupported(self, request: worker_pb2.GenerateRequest, problems: dict[str, str]) -> None:
        if request.adapter:
            problems["adapter"] = "this model has no adapters"

    def _stop(self, request: worker_pb2.GenerateRequest, problems: dict[str, str]) -> StopConditions:
        wanted = request.stop
        if any(token >= self.limits.vocab_size for token in wanted.stop_token_ids):
            problems["stop.stop_token_ids"] = f"ids must be below the vocabulary of {self.limits.vocab_size}"
        stops = frozenset(wanted.stop_token_ids) | (frozenset() if wanted.ignore_eos else self.limits.eos_token_ids)
        return StopConditions(stops, wanted.min_tokens)
