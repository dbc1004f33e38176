"""From our stream of one request to ``VllmEngine``'s: chunks of tokens, and one message at the end of each sample."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2

from model_worker.vllm_face.stops import StopStrings
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
        ended: its last message has gone out.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)
    ended: bool = False


@dataclass(slots=True)
class Answers:
    """The messages for one request.

    Attributes:
        request: as it came, ``vllm.grpc.engine.GenerateRequest``.
        prompt: the prompt's ids as the worker has them.
        stops: ends samples before the worker does.
    """

    request: Any
    prompt: Sequence[int]
    stops: StopStrings | None = None
    _started: worker_pb2.Started = field(default_factory=worker_pb2.Started)
    _samples: dict[int, _Sample] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Every sample's last message has gone out: what the worker still says is of no interest."""
        wanted: int = self.request.sampling_params.n or 1
        return sum(sample.ended for sample in self._samples.values()) == wanted

    def overtakes(self, response: worker_pb2.GenerateResponse) -> bool:
        """Whether the sample of a response that was told has ended before the worker ended it."""
        return self._samples[response.index].ended and not response.HasField("finished")

    def tell(self, response: worker_pb2.GenerateResponse) -> Iterator[Any]:
        """The ``GenerateResponse`` messages that one of ours comes to."""
        if response.HasField("started"):
            self._started = response.started
        sample = self._samples.setdefault(response.index, _Sample())
        if sample.ended:
            return
        told = len(sample.tokens)
        sample.tokens += response.token_ids
        sample.logprobs += response.logprobs
        stop = self.stops and self.stops.find(sample.tokens, len(response.token_ids))
        if stop:
            del sample.tokens[stop[0] :], sample.logprobs[stop[0] :]
        if self.request.stream and len(sample.tokens) > told:
            yield vllm_pb2.GenerateResponse(chunk=self._chunk(response.index, sample, told))
        if stop or response.HasField("finished"):
            sample.ended = True
            complete = self._complete(response.index, sample)
            if stop:
                complete.finish_reason, complete.matched_stop_str = "stop", stop[1]
            else:
                self._finish(complete, response.finished)
            yield vllm_pb2.GenerateResponse(complete=complete)

    def _chunk(self, index: int, sample: _Sample, told: int) -> Any:
        """The tokens of a sample behind the first ``told``."""
        return vllm_pb2.GenerateStreamChunk(
            token_ids=sample.tokens[told:],
            prompt_tokens=len(self.prompt),
            completion_tokens=len(sample.tokens) - told,
            cached_tokens=self._started.cached_tokens,
            output_logprobs=self._output_logprobs(sample.logprobs[told:]),
            input_logprobs=None if told else self._input_logprobs(),
            index=index,
        )

    def _complete(self, index: int, sample: _Sample) -> Any:
        """The end of a sample; whoever had its tokens in chunks is not told them again."""
        whole = not self.request.stream
        return vllm_pb2.GenerateComplete(
            output_ids=sample.tokens if whole else (),
            prompt_tokens=len(self.prompt),
            completion_tokens=len(sample.tokens),
            cached_tokens=self._started.cached_tokens,
            output_logprobs=self._output_logprobs(sample.logprobs) if whole else None,
            input_logprobs=self._input_logprobs() if whole else None,
            index=index,
        )

    def _finish(self, complete: Any, finished: worker_pb2.Finished) -> None:
        complete.finish_reason = FINISH_REASONS[finished.reason]
        # Of a model's own end of sequence there is nothing to tell.
        if finished.HasField("stop_token_id") and finished.stop_token_id in self.request.sampling_params.stop_token_ids:
            complete.matched_token_id = finished.stop_token_id

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
