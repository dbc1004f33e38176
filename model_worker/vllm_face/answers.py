"""From our stream of one request to ``VllmEngine``'s: chunks of tokens, and one message at the end of each sample."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2

from octavo.worker.v1 import sampling_pb2, worker_pb2

FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
    sampling_pb2.FINISH_REASON_ABORTED: "abort",
}


@dataclass(slots=True)
class _Sample:
    """What is known of one sample.

    Attributes:
        tokens: all so far.
        logprobs: theirs, when asked for.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class Answers:
    """The messages for one request.

    Attributes:
        request: as it came, ``vllm.grpc.engine.GenerateRequest``.
        prompt: the prompt's ids as the worker has them.
    """

    request: Any
    prompt: Sequence[int]
    _started: worker_pb2.Started = field(default_factory=worker_pb2.Started)
    _samples: dict[int, _Sample] = field(default_factory=dict)

    def tell(self, response: worker_pb2.GenerateResponse) -> Iterator[Any]:
        """The ``GenerateResponse`` messages that one of ours comes to."""
        if response.HasField("started"):
            self._started = response.started
        sample = self._samples.setdefault(response.index, _Sample())
        if self.request.stream and response.token_ids:
            yield vllm_pb2.GenerateResponse(chunk=self._chunk(response, first=not sample.tokens))
        sample.tokens += response.token_ids
        sample.logprobs += response.logprobs
        if response.HasField("finished"):
            yield vllm_pb2.GenerateResponse(complete=self._complete(response, sample))

    def _chunk(self, response: worker_pb2.GenerateResponse, *, first: bool) -> Any:
        return vllm_pb2.GenerateStreamChunk(
            token_ids=response.token_ids,
            prompt_tokens=len(self.prompt),
            completion_tokens=len(response.token_ids),
            cached_tokens=self._started.cached_tokens,
            output_logprobs=self._output_logprobs(response.logprobs),
            input_logprobs=self._input_logprobs() if first else None,
            index=response.index,
        )

    def _complete(self, response: worker_pb2.GenerateResponse, sample: _Sample) -> Any:
        """The end of a sample; whoever had its tokens in chunks is not told them again."""
        finished, whole = response.finished, not self.request.stream
        complete = vllm_pb2.GenerateComplete(
            output_ids=sample.tokens if whole else (),
            finish_reason=FINISH_REASONS[finished.reason],
            prompt_tokens=len(self.prompt),
            completion_tokens=len(sample.tokens),
            cached_tokens=self._started.cached_tokens,
            output_logprobs=self._output_logprobs(sample.logprobs) if whole else None,
            input_logprobs=self._input_logprobs() if whole else None,
            index=response.index,
        )
        # Of a model's own end of sequence there is nothing to tell.
        if finished.stop_token_id in self.request.sampling_params.stop_token_ids and finished.HasField("stop_token_id"):
            complete.matched_token_id = finished.stop_token_id
        return complete

    def _output_logprobs(self, entries: Sequence[sampling_pb2.TokenLogprobs]) -> Any:
        """None when there are none."""
        if not entries:
            return None
        return vllm_pb2.OutputLogProbs(
            token_logprobs=[entry.logprob for entry in entries],
            token_ids=[entry.token_id for entry in entries],
            top_logprobs=[_top(entry) for entry in entries] if self.request.sampling_params.logprobs else (),
        )

    def _input_logprobs(self) -> Any:
        """None when nobody asked; the first token has no log-probability, but a place."""
        params, entries = self.request.sampling_params, self._started.prompt_logprobs
        if not params.HasField("prompt_logprobs"):
            return None
        first = vllm_pb2.InputTokenLogProb()
        return vllm_pb2.InputLogProbs(
            token_logprobs=[first, *(vllm_pb2.InputTokenLogProb(value=entry.logprob) for entry in entries)],
            token_ids=self.prompt,
            top_logprobs=[vllm_pb2.TopLogProbs(), *map(_top, entries)] if params.prompt_logprobs else (),
        )


def _top(entry: sampling_pb2.TokenLogprobs) -> Any:
    return vllm_pb2.TopLogProbs(
        values=[one.logprob for one in entry.top], token_ids=[one.token_id for one in entry.top]
    )
