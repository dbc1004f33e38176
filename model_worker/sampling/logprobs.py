"""Log-probabilities of the model's own distribution: the log-softmax of its logits, before any processor or filter.

What a user measures is the model, as with other servers of the same API; what was drawn from may be far from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import top_k
from model_worker.sampling.results import TokenLogprobs

_ROWS_AT_A_TIME = 64


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of some rows.

    Attributes:
        values: float32 ``[rows, vocab]``.
        tops: how many of the most likely tokens each row wants.
    """

    values: Tensor
    tops: Sequence[int]

    @classmethod
    def of(cls, logits: Tensor, tops: Sequence[int]) -> "Logprobs":
        """Of logits, float32 ``[rows, vocab]``, which are left as they are."""
        return cls(torch.log_softmax(logits, dim=-1), tops)

    def at(self, tokens: Tensor) -> list[TokenLogprobs]:
        """The entries when ``tokens``, int64 ``[rows]``, are the ones chosen."""
        chosen = self.values.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
        most = min(max(self.tops, default=0), self.values.shape[-1])
        best: list[list[tuple[int, float]]] = [[] for _ in chosen]
        if most > 0:
            values, ids = top_k(self.values, most)
            best = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
        return [
            TokenLogprobs(token, logprob, tuple(likely[:top]))
            for token, logprob, likely, top in zip(tokens.tolist(), chosen, best, self.tops, strict=True)
        ]


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
    """One entry per row of ``[rows, vocab]``; some rows at a time, because each needs as much memory again."""
    entries = []
    for start in range(0, len(tokens), _ROWS_AT_A_TIME):
        part = tokens[start : start + _ROWS_AT_A_TIME]
        logprobs = Logprobs.of(logits[start : start + len(part)], [top] * len(part))
        entries += logprobs.at(torch.tensor(part, device=logits.device))
    return entries
