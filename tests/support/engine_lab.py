"""The worker's engine on a model in this process, with the real manager beside it: any pool in milliseconds."""

import contextlib
import queue
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from in_process_manager import InProcessManager

from kernels import PoolShape, allocate_host_pool, allocate_pool
from model_worker.engine.batch import Limits
from model_worker.engine.engine import Engine
from model_worker.engine.host_tier import HostTier, NoHostTier, Swaps
from model_worker.engine.manager_client import ManagerClient
from model_worker.engine.progress import Progress
from model_worker.engine.runner import ModelRunner
from model_worker.engine.sequence import EndReason, Timeline
from model_worker.model.loader import LoadedModel, load_model, read_config
from model_worker.requests import ModelLimits, RequestReader
from model_worker.sampling.grammar import GrammarCompiler
from model_worker.sampling.results import TokenLogprobs
from octavo.kv.v1 import attach_pb2, common_pb2, steps_pb2
from octavo.worker.v1 import sampling_pb2, worker_pb2

SECONDS = 240


@dataclass
class Sample:
    """What came of one sample."""

    tokens: list[int] = field(default_factory=list)
    reason: EndReason | None = None
    message: str = ""
    timeline: Timeline = field(default_factory=Timeline)
    cumulative_logprob: float = 0.0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


def request(
    ids: list[int], max_tokens: int, temperature: float = 0.0, seed: int | None = None, **fields: object
) -> worker_pb2.GenerateRequest:
    """A request that goes on past the end of sequence."""
    return worker_pb2.GenerateRequest(
        token_ids=ids,
        sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=seed),
        stop=sampling_pb2.StopConditions(max_tokens=max_tokens, ignore_eos=True),
        **fields,  # type: ignore[arg-type]
    )


class Lab:
    """One engine at work."""

    def __init__(self, engine: Engine, reader: RequestReader, progress: "queue.SimpleQueue[list[Progress]]") -> None:
        self.engine = engine
        self._reader = reader
        self._progress = progress

    def generate(self, *requests: worker_pb2.GenerateRequest) -> list[list[Sample]]:
        """Run requests together; the samples of each by index."""
        handles = [self._reader.read(one) for one in requests]
        samples = [[Sample() for _ in range(one.n if one.HasField("n") else 1)] for one in requests]
        place = {handle.arrival: index for index, handle in enumerate(handles)}
        for handle in handles:
            self.engine.submit(handle)
        left = sum(map(len, samples))
        while left:
            for told in self._progress.get(timeout=SECONDS):
                sample = samples[place[told.sequence.arrival]][told.sequence.sampling.index]
                sample.tokens += told.tokens
                sample.logprobs += told.logprobs
                if told.ended is not None:
                    left -= 1
                    sample.reason, sample.message = told.sequence.end_reason, told.ended.message
                    sample.timeline = told.sequence.timeline
                    sample.cumulative_logprob = told.sequence.cumulative_logprob
                    sample.prompt_logprobs = told.sequence.prompt_logprobs
        return samples


class Unpriced(InProcessManager):
    """Hears nothing of rates: it swaps whenever the host tier has room, whatever a busy machine has measured."""

    def send(self, request: steps_pb2.StepRequest) -> None:
        request.ClearField("rates")
        super().send(request)


class LabModel:
    """A model, loaded once, for engines of any shape."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(2)
        self.config = read_config(folder)
        self.loaded: LoadedModel = load_model(folder, torch.float32, torch.device("cpu"))
        vocabulary = folder / "tokenizer.json"
        self._grammars = GrammarCompiler(
            vocabulary.read_text() if vocabulary.is_file() else None, self.config.vocab_size, self.config.eos_token_ids
        )

    @contextlib.contextmanager
    def engine(
        self,
        num_blocks: int,
        *,
        block_size: int = 16,
        host_blocks: int = 0,
        max_sequences: int = 16,
        max_chunk: int = 512,
        manager: ManagerClient | None = None,
        swaps: Swaps | None = None,
    ) -> Iterator[Lab]:
        """An engine whose answers to ``Lab.generate`` are complete."""
        config = self.config
        shape = PoolShape(
            num_blocks, config.num_layers, config.num_kv_heads, block_size, config.head_dim, torch.float32
        )
        pool = allocate_pool(shape, torch.device("cpu"))
        if swaps is None:
            swaps = (
                HostTier(pool, allocate_host_pool(shape, host_blocks, pinned=False)) if host_blocks else NoHostTier()
            )
        progress: queue.SimpleQueue[list[Progress]] = queue.SimpleQueue()
        ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        engine = Engine(
            spec=attach_pb2.PoolSpec(
                pool="lab",
                worker_id="lab",
                num_blocks=num_blocks,
                block_size=block_size,
                block_bytes=shape.block_bytes,
                host_blocks=host_blocks,
                model_fingerprint="lab",
                reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
            ),
            limits=Limits(
                num_blocks, block_size, max_batch_tokens=512, max_sequences=max_sequences, max_chunk=max_chunk
            ),
            runner=ModelRunner(self.loaded.model, pool, block_size),
            manager=manager or InProcessManager(),
            emit=progress.put,
            on_ready=lambda is_ready, _: ready.put(is_ready),
            on_failure=lambda: ready.put(False),
            swaps=swaps,
        )
        most = min(config.max_context, num_blocks * block_size)
        eos: Iterable[int] = config.eos_token_ids
        reader = RequestReader(ModelLimits(config.vocab_size, most, frozenset(eos), max_sequences), self._grammars)
        engine.start()
        assert ready.get(timeout=120)
        try:
            yield Lab(engine, reader, progress)
        finally:
            engine.stop()
