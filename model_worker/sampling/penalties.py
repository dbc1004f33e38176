"""Repetition, presence and frequency penalties, from counts kept token by token."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from model_worker.sampling.entries import Ids, flat_entries, spread
from model_worker.sampling.params import SamplingParams
from model_worker.sampling.processors import SampledRow


@dataclass(slots=True)
class TokenCounts:
    """The distinct tokens of a sequence and how often each was generated; those of the prompt alone count 0.

    Adding a token costs the same however long the sequence is, and reading them no copy.
    """

    params: SamplingParams
    size: int = 0
    _ids: Ids = field(default_factory=lambda: np.empty(64, dtype=np.int64))
    _counts: Ids = field(default_factory=lambda: np.empty(64, dtype=np.int64))
    _place: dict[int, int] = field(default_factory=dict)

    @property
    def ids(self) -> Ids:
        return self._ids[: self.size]

    @property
    def counts(self) -> Ids:
        return self._counts[: self.size]

    def add(self, token: int, count: int) -> None:
        """Count a token ``count`` times more."""
        place = self._place.setdefault(token, self.size)
        if place < self.size:
            self._counts[place] += count
            return
        if self.size == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
        self._ids[place], self._counts[place] = token, count
        self.size += 1


class Penalties:
    """First the repetition penalty, for tokens of prompt and output, then presence and frequency, for the output."""

    def begin(self, row: SampledRow) -> TokenCounts | None:
        params = row.sampling
        if params.repetition_penalty == 1.0 and params.presence_penalty == 0.0 and params.frequency_penalty == 0.0:
            return None
        counts = TokenCounts(params)
        if params.repetition_penalty != 1.0:
            for token in set(row.tokens[: row.prompt_length]):
                counts.add(token, 0)
        return counts

    def accept(self, state: TokenCounts, token: int) -> None:
        state.add(token, 1)

    def apply(self, logits: Tensor, rows: Sequence[int], states: Sequence[TokenCounts]) -> None:
        ids = [one.ids for one in states]
        entries = flat_entries(logits, rows, ids)
        counts = torch.from_numpy(np.concatenate([one.counts for one in states])).to(logits)
        values = logits.view(-1)[entries]
        # A penalty may be any number above 0, its products no more than float32 holds: what a request asks for in
        # earnest or in error must not look like a model that gave no numbers.
        float32 = torch.finfo(torch.float32)
        strengths = [min(max(one.params.repetition_penalty, float32.tiny), float32.max) for one in states]
        repetition = spread(strengths, ids, logits)
        weakened = torch.where(values < 0, values * repetition, values / repetition)
        values = torch.where(values.isfinite(), weakened.clamp_(float32.min, float32.max), values)
        values -= counts * spread([one.params.frequency_penalty for one in states], ids, logits)
        values -= (counts > 0) * spread([one.params.presence_penalty for one in states], ids, logits)
        logits.view(-1)[entries] = values
