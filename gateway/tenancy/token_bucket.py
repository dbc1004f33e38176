"""A bucket that fills at a steady rate: what was taken is there again after taken / rate seconds. Pure."""

import math


class TokenBucket:
    """Starts full. A bucket of infinite burst never runs dry and counts nothing.

        level(t) = min(burst, level(t0) + (t - t0) * rate)

    Args:
        rate: per second.
        burst: what it holds.
        now: seconds on any clock that does not go back; all calls use the same one.
    """

    __slots__ = ("_at", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at = now

    def level(self, now: float) -> float:
        """What can be taken now."""
        if math.isinf(self.burst):
            return self.burst
        return min(self.burst, self._level + max(0.0, now - self._at) * self.rate)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` can be taken, if nobody else takes any: 0 for now, infinity for never."""
        if amount > self.burst:
            return math.inf
        missing = amount - self.level(now)
        return 0.0 if missing <= 0 else missing / self.rate

    def take(self, amount: float, now: float) -> None:
        """Take ``amount``, which ``wait`` has said is there."""
        self._set(self.level(now) - amount, now)

    def give_back(self, amount: float, now: float) -> None:
        """Return what was taken and not used; what flows over is lost."""
        self._set(min(self.burst, self.level(now) + amount), now)

    def resize(self, rate: float, burst: float, now: float) -> None:
        """Change the limits. What was taken stays taken."""
        taken = 0.0 if math.isinf(self.burst) else self.burst - self.level(now)
        self.rate, self.burst = rate, burst
        self._set(burst - taken, now)

    def _set(self, level: float, now: float) -> None:
        self._level = level
        self._at = max(self._at, now)
