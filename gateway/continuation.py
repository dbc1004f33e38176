"""What a request has brought so far, and the request that has another worker go on from there. Pure.

A worker that is given the prompt, the tokens so far and the seed draws exactly the tokens that the first one would have
drawn next: draws are keyed by (seed, sample, position). So what continues a stream is a request with `resume`:

    sample 0   t0 t1 t2            begun: goes on at position len(prompt) + 3
    sample 1   -                   not begun: starts
    sample 2   t0 t1 t2 t3 (end)   finished: told t0 t1 t2, so that it ends again at once; what it says is ignored

`max_tokens` and `min_tokens` count from the prompt for the resuming worker too, so they stay as they are.
"""

from collections.abc import Sequence

from gateway.streams import Piece, SampleStream
from octavo.worker.v1 import worker_pb2


class Continuation:
    """The state of one request, whichever workers it runs on.

    Args:
        request: as the first worker is asked.
        samples: one per answer, at their start.
    """

    def __init__(self, request: worker_pb2.GenerateRequest, samples: Sequence[SampleStream]) -> None:
        self._first = request
        self._samples = samples
        self._seed: int | None = None
        self._ended: set[int] = set()
        self._given_up: set[int] = set()

    @property
    def begun(self) -> bool:
        """Whether a worker has brought anything."""
        return self._seed is not None

    @property
    def finished(self) -> bool:
        """Whether every sample is whole."""
        return all(sample.finish is not None for sample in self._samples)

    @property
    def overtaken(self) -> bool:
        """Whether every sample is whole while the worker still goes on with some, to cancel."""
        return self.finished and len(self._ended) < len(self._samples)

    @property
    def exact(self) -> bool:
        """Whether another worker can go on. Samples chosen at the end start over, unless some were told already."""
        return not self.begun or not _chosen_at_end(self._first)

    @property
    def tokens(self) -> int:
        """Tokens brought so far, of all samples."""
        return sum(len(sample.tokens) for sample in self._samples)

    @property
    def longest(self) -> Sequence[int]:
        """What the furthest sample has generated."""
        return max((sample.tokens for sample in self._samples), key=len)

    def request(self) -> worker_pb2.GenerateRequest:
        """What the next worker is asked; the first one's request as long as nothing came."""
        self._ended.clear()
        self._given_up.clear()
        if self._seed is None:
            return self._first
        request = worker_pb2.GenerateRequest()
        request.CopyFrom(self._first)
        request.ClearField("prompt_logprobs")  # they came with the first message
        request.resume.seed = self._seed
        for sample in self._samples:
            told = sample.tokens if sample.finish is None else sample.tokens[:-1]
            request.resume.samples.add(index=sample.index, token_ids=told)
        return request

    def push(self, message: worker_pb2.GenerateResponse, seconds: float) -> Piece | None:
        """Take a worker's next message; the piece it gives, None when it holds nothing new.

        Args:
            message: of the last request.
            seconds: time since the request arrived.

        Raises:
            ValueError: a sample ended for no known reason.
        """
        if self._seed is None and message.HasField("started"):
            self._seed = message.started.seed
            for sample in self._samples:
                sample.start(message.started)
        if message.HasField("finished"):
            self._ended.add(message.index)
        return self._samples[message.index].push(message, seconds)

    def overtakes(self, index: int) -> bool:
        """Whether the worker goes on with a sample that is whole, to be ended there; true once for each and worker."""
        if self._samples[index].finish is None or index in self._ended or index in self._given_up:
            return False
        self._given_up.add(index)
        return not _chosen_at_end(self._first)

    def migrated(self, paused_seconds: float) -> None:
        """Note that another worker has gone on, after a pause."""
        for sample in self._samples:
            if sample.finish is None:
                sample.migrated(paused_seconds)


def _chosen_at_end(request: worker_pb2.GenerateRequest) -> bool:
    """Whether the worker tells the best of more samples than it returns, which it cannot be told to go on with."""
    returned = request.n if request.HasField("n") else 1
    generated = request.best_of if request.HasField("best_of") else returned
    return request.HasField("beam_search") or returned < generated
