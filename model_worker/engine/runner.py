"""A batch through the model and the sampler. The only part of the engine that touches tensors."""

import torch
from torch import Tensor

from kernels import RaggedBatch, copy_blocks
from kernels.staging import integers
from model_worker.engine.batch import Batch, Row
from model_worker.engine.decode_graphs import DecodeGraphs
from model_worker.model.paged_model import PagedModel
from model_worker.sampling.logprobs import token_logprobs
from model_worker.sampling.results import StepOutput, TokenLogprobs
from model_worker.sampling.sampler import Sampler


class ModelRunner:
    """Runs batches on one device, in order.

    Args:
        graphs: run the batches in which every row decodes, as far as they take them; None to run all alike.
    """

    def __init__(self, model: PagedModel, pool: Tensor, block_size: int, graphs: DecodeGraphs | None = None) -> None:
        self._model = model
        self._pool = pool
        self._block_size = block_size
        self._graphs = graphs
        self._sampler = Sampler()

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepOutput:
        """Copies, then one forward pass, then sampling."""
        if batch.copies:
            sources, destinations = zip(*batch.copies, strict=True)
            copy_blocks(self._pool, sources, destinations)
        if not batch.rows:
            return StepOutput({}, {})
        device = self._pool.device
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logits_at: list[int] = []
        prompt_at: list[int] = []
        scored: list[range] = []
        for row in batch.rows:
            first = len(ids) - row.start
            ids += row.sequence.tokens[row.start : row.end]
            positions += range(row.start, row.end)
            slots += self._slots(row)
            if row.samples:
                logits_at.append(len(ids) - 1)
            scored.append(_scored_positions(row))
            prompt_at += [first + position for position in scored[-1]]
        tables = [row.sequence.table for row in batch.rows]
        # As many positions as rows, all of which sample: every row decodes.
        decodes = len(ids) == len(batch.rows) == len(logits_at) and not prompt_at
        if decodes and self._graphs is not None and self._graphs.takes(len(tables), max(map(len, tables))):
            logits = self._graphs.run(ids, positions, slots, tables)
        else:
            lengths = [row.end - row.start for row in batch.rows]
            ragged = RaggedBatch.of(lengths, [row.end for row in batch.rows], tables, device)
            wanted = [] if decodes else [*logits_at, *prompt_at]
            # One copy for all: each has its own cost, and none is large.
            numbers = integers([*ids, *positions, *slots, *wanted], torch.int64, device)
            count = len(ids)
            logits = self._model.forward(
                numbers[:count],
                numbers[count : 2 * count],
                numbers[2 * count : 3 * count],
                ragged,
                self._pool,
                None if decodes else numbers[3 * count :],
            )
        sequences = [row.sequence for row in batch.rows if row.samples]
        prompt_logprobs = _prompt_logprobs(logits[len(logits_at) :], batch.rows, scored) if prompt_at else {}
        sampled = self._sampler.sample(logits[: len(logits_at)], sequences) if sequences else []
        by_seq = {one.seq: outcome for one, outcome in zip(sequences, sampled, strict=True)}
        return StepOutput(by_seq, prompt_logprobs)

    def _slots(self, row: Row) -> list[int]:
        """Where each position's K and V go; below the write floor they go to the null block (design 3.2)."""
        size, table = self._block_size, row.sequence.table
        floor = row.sequence.hit_blocks * size
        return [
            table[position // size] * size + position % size if position >= floor else position % size
            for position in range(row.start, row.end)
        ]


def _scored_positions(row: Row) -> range:
    """The positions of a row whose logits tell the log-probability of the prompt's next token, if that is wanted.

    What a preempted sequence computes once more is known already. A row that begins behind what is known belongs to a
    sample that was forked: the first sample tells of the prompt.
    """
    sequence = row.sequence
    known = len(sequence.prompt_logprobs)
    if sequence.sampling.prompt_logprobs is None or row.start > known:
        return range(0)
    return range(known, min(row.end, sequence.prompt_length - 1))


def _prompt_logprobs(logits: Tensor, rows: list[Row], scored: list[range]) -> dict[int, list[TokenLogprobs]]:
    """By sequence id, from ``[positions of all rows together, vocab]``."""
    found = {}
    start = 0
    for row, positions in zip(rows, scored, strict=True):
        if positions:
            part = logits[start : start + len(positions)]
            start += len(positions)
            following = row.sequence.tokens[positions.start + 1 : positions.stop + 1]
            found[row.sequence.seq] = token_logprobs(part, following, row.sequence.sampling.prompt_logprobs or 0)
    return found
