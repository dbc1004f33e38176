"""Feed-forward blocks: dense, and a mixture of experts."""

from collections.abc import Sequence

import torch

from kernels import PackedLinear, linear
from model_worker.model.activations import Gate


class DenseFeedForward:
    """down(activation(gate x) * (up x))."""

    __slots__ = ("down", "gate", "gate_up")

    def __init__(self, gate_up: PackedLinear, down: PackedLinear, gate: Gate | None) -> None:
        """gate_up is gated itself when `gate` is None."""
        self.gate_up = gate_up
        self.down = down
        self.gate = gate

    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]"""
        inner = linear(normed, self.gate_up)
        return linear(inner if self.gate is None else self.gate(inner), self.down)


class MixtureOfExperts:
    """Each token through the `chosen` experts with the largest router probabilities, weighted by these."""

    __slots__ = ("_chosen", "_experts", "_normalised", "_router")

    def __init__(
        self, router: PackedLinear, experts: Sequence[DenseFeedForward], chosen: int, normalised: bool
    ) -> None:
        self._router = router
        self._experts = experts
        self._chosen = chosen
        self._normalised = normalised

    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]

        The (token, expert) pairs are sorted by expert, so that an expert's tokens are one run and its weights are read
        once. With 3 tokens, 2 experts each:

            experts of the tokens   [2 0] [0 1] [0 2]
            pairs by expert         0: pairs 1 2 4    1: pair 3    2: pairs 0 5
            token of pair           pair // 2
        """
        tokens, hidden = normed.shape
        weights, experts = linear(normed, self._router).float().softmax(-1).topk(self._chosen, -1)
        if self._normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        by_expert = experts.flatten().argsort(stable=True)
        counts = experts.flatten().bincount(minlength=len(self._experts)).tolist()
        inputs = normed.index_select(0, by_expert // self._chosen)
        outputs = torch.empty(tokens * self._chosen, hidden, dtype=normed.dtype, device=normed.device)
        start = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                outputs[start : start + count] = expert(inputs[start : start + count])
                start += count
        # Added in the order of the token's own choice, so that its sum has the same bits whoever else is in the step.
        of_token = torch.empty_like(outputs).index_copy_(0, by_expert, outputs).view(tokens, self._chosen, hidden)
        return (of_token.float() * weights[..., None]).sum(1).to(normed.dtype)
