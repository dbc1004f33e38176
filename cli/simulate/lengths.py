"""Prompt and output lengths: lognormal fits to what was published of two data sets.

Only the means were published. The spreads are fits, each to a single published figure and stated beside it; everything
else that ``octavo simulate --paper`` prints follows from them.
"""

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist

# Quantiles that stand for a distribution while its means are computed.
QUANTILES = 2_000
ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Lengths:
    """Independent lognormal lengths, drawn again where prompt and output together outgrow the model.

    Attributes:
        mean_prompt: mean of the prompts that are kept, tokens.
        mean_output: the same of the outputs.
        prompt_sigma: standard deviation of the logarithm.
        output_sigma: the same of the outputs.
        max_tokens: prompt and output together.
    """

    name: str
    mean_prompt: float
    mean_output: float
    prompt_sigma: float
    output_sigma: float
    max_tokens: int = 2_048

    def draw(self, count: int, seed: int) -> list[tuple[int, int]]:
        """``count`` pairs (prompt tokens, output tokens); the same seed draws the same ones."""
        dice = random.Random(f"{seed} {self.name}")
        prompt_mu, output_mu = self._locations()
        pairs: list[tuple[int, int]] = []
        while len(pairs) < count:
            prompt = max(1, round(dice.lognormvariate(prompt_mu, self.prompt_sigma)))
            output = max(1, round(dice.lognormvariate(output_mu, self.output_sigma)))
            if prompt + output <= self.max_tokens:
                pairs.append((prompt, output))
        return pairs

    def _locations(self) -> tuple[float, float]:
        """Means of the logarithms such that the pairs that are kept have the published means.

        Cutting off long pairs lowers both means; each round raises the locations by what is missing.
        """
        prompt_mu = math.log(self.mean_prompt) - self.prompt_sigma**2 / 2
        output_mu = math.log(self.mean_output) - self.output_sigma**2 / 2
        for _ in range(ROUNDS):
            prompt_mean, output_mean = self._kept_means(prompt_mu, output_mu)
            prompt_mu += math.log(self.mean_prompt / prompt_mean)
            output_mu += math.log(self.mean_output / output_mean)
        return prompt_mu, output_mu

    def _kept_means(self, prompt_mu: float, output_mu: float) -> tuple[float, float]:
        prompts, outputs = _quantiles(prompt_mu, self.prompt_sigma), _quantiles(output_mu, self.output_sigma)
        sums = [0.0, *accumulate(outputs)]
        kept, prompt_sum, output_sum = 0, 0.0, 0.0
        for prompt in prompts:
            fitting = bisect_right(outputs, self.max_tokens - prompt)
            kept += fitting
            prompt_sum += prompt * fitting
            output_sum += sums[fitting]
        return prompt_sum / kept, output_sum / kept


def _quantiles(mu: float, sigma: float) -> list[float]:
    """Ascending lengths of equal probability, as whole tokens."""
    normal = NormalDist(mu, sigma)
    return [max(1.0, round(math.exp(normal.inv_cdf((k + 0.5) / QUANTILES)))) for k in range(QUANTILES)]


SHAREGPT = Lengths("sharegpt", 161.31, 337.99, prompt_sigma=1.0, output_sigma=0.82)
"""Chats. The spread of the outputs is fitted to the batch of 13.62 that the oracle was published to have."""

ALPACA = Lengths("alpaca", 19.31, 58.45, prompt_sigma=0.6, output_sigma=0.9)
"""Instructions. The spread of the outputs is fitted to the 6.1 % that sharing by two samples was published to save."""

BY_NAME = {lengths.name: lengths for lengths in (SHAREGPT, ALPACA)}
