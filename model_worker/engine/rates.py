"""The worker's measured speeds, with which the manager prices swapping against recomputing (design 3.4)."""

from dataclasses import dataclass

from model_worker.engine.batch import Batch
from octavo.kv.v1 import common_pb2

NEWS = 1.25
SMOOTHING = 0.2
LEAST_TOKENS = 16


@dataclass(slots=True)
class MeasuredRates:
    """Smoothed rates, told when one has moved by a quarter since it was told last.

    Attributes:
        prefill: prompt tokens per second, of the steps that mostly computed prompts.
        copy: bytes per second between pool and host tier.
    """

    prefill: float = 0.0
    copy: float = 0.0
    _told: tuple[float, float] = (0.0, 0.0)

    def see_step(self, batch: Batch, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        lengths = [row.end - row.start for row in batch.rows]
        tokens = sum(lengths)
        if tokens < max(LEAST_TOKENS, 2 * len(lengths)) or seconds <= 0:
            return
        rate = tokens / seconds
        self.prefill = rate if not self.prefill else (1 - SMOOTHING) * self.prefill + SMOOTHING * rate

    def message(self) -> common_pb2.Rates | None:
        """The rates, None until both were measured."""
        if not (self.prefill and self.copy):
            return None
        return common_pb2.Rates(prefill_tokens_per_second=self.prefill, copy_bytes_per_second=self.copy)

    def news(self) -> common_pb2.Rates | None:
        """The rates if they are worth telling again."""
        rates = self.message()
        if rates is None or all(
            old / NEWS < new < old * NEWS for new, old in zip((self.prefill, self.copy), self._told, strict=True)
        ):
            return None
        self._told = (self.prefill, self.copy)
        return rates
