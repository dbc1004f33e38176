"""When to leave out a peer whose calls fail: a circuit breaker. Pure: time comes in as an argument.

             FAILURES in a row                      the pause is over
closed ───────────────────────────> open ─────────────────────────────> half open: one call tries
   ^                                  ^                                         │        │
   │                                  └──── it failed: the pause doubles ───────┘        │
   └──────────────────────────────────────── it was answered ────────────────────────────┘
"""

from dataclasses import dataclass

FAILURES = 3
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
# A trial whose caller left, or that is just slow, gives way to another one.
TRIAL_SECONDS = 5.0


@dataclass(slots=True)
class Circuit:
    """The recent calls to one peer.

    A trial that was answered closes the circuit, but only a call that ended well makes the next pause short again: a
    peer whose calls all break after their first answer stays out for longer each time.
    """

    _failures: int = 0
    _pause: float = FIRST_PAUSE_SECONDS
    _open_until: float = 0.0
    _is_open: bool = False
    _trial_until: float = 0.0

    def takes_calls(self, now: float) -> bool:
        """Whether a call may be made: ``now`` is in seconds of a monotonic clock."""
        return not self._is_open or (now >= self._open_until and now >= self._trial_until)

    def begin(self, now: float) -> None:
        """A call is made: of an open circuit, it is the trial."""
        if self._is_open:
            self._trial_until = now + TRIAL_SECONDS

    def answered(self) -> None:
        """A call brought a first answer."""
        if self._is_open:
            self._is_open = False
            self._trial_until = 0.0
            self._failures = FAILURES - 1

    def succeeded(self) -> None:
        """A call ended well."""
        self._is_open = False
        self._failures = 0
        self._trial_until = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    def failed(self, now: float) -> None:
        """A call failed by the peer's fault."""
        if self._is_open and self._trial_until == 0.0:
            return  # it began before the circuit opened, and says nothing new
        self._failures += 1
        if self._failures >= FAILURES:
            self._is_open = True
            self._trial_until = 0.0
            self._open_until = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
