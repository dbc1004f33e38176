"""What a user chose for a simulation, checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cli.failures import CliError
from cli.simulate.costs import Costs, Device, Shape
from cli.simulate.experiments import Setting
from cli.simulate.lengths import Lengths
from cli.simulate.measuring import Window
from cli.simulate.scheduling import Limits

Value = TypeVar("Value")
Number = TypeVar("Number", int, float)

DRAWN_REQUESTS = 2_000
PAPER_SLOTS = 15_736
TRACE_GIB = 50.0
TRACE_MAX_TOKENS = 16_384
NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Choices:
    """The command's options; 0 or empty where the user left one to us."""

    trace: str
    lengths: Lengths
    requests: int
    rate: float
    speeds: list[float]
    samples: int
    beams: int
    turnover: float
    shape: Shape
    device: Device
    memories: list[float]
    block_sizes: list[int]
    capacities: list[int]
    watermark: float
    max_tokens: int
    max_batch: int
    budget: int
    seed: int

    @property
    def costs(self) -> Costs:
        """The model on the device."""
        return Costs(self.shape, self.device)

    @property
    def count(self) -> int:
        """Requests to draw."""
        return self.requests or DRAWN_REQUESTS

    @property
    def width(self) -> int:
        """Sequences of a request."""
        return max(self.samples, self.beams)

    def slots(self, gib: float) -> int:
        """Tokens that a memory holds.

        Args:
            gib: its size, 0 where the user left it to us.
        """
        if gib or self.trace:
            return self.costs.slots(gib or TRACE_GIB)
        return PAPER_SLOTS

    def setting(self, gib: float, block_size: int, window: Window) -> Setting:
        """A run's setting.

        Raises:
            CliError: the memory holds no block.
        """
        slots = self.slots(gib)
        if slots < block_size:
            raise CliError(f"the memory holds {slots} tokens, a block {block_size}")
        longest = min(TRACE_MAX_TOKENS, self.shape.max_tokens) if self.trace else self.lengths.max_tokens
        return Setting(
            slots=slots,
            max_tokens=self.max_tokens or longest,
            block_size=block_size,
            costs=self.costs,
            limits=Limits(self.budget, self.max_batch or NO_LIMIT, self.width),
            window=window,
            watermark=self.watermark,
        )


def named(option: str, name: str, known: Mapping[str, Value]) -> Value:
    """What ``name`` stands for.

    Raises:
        CliError: for nothing.
    """
    if name not in known:
        raise CliError(f"{option} is one of {', '.join(known)}, not {name!r}")
    return known[name]


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """Positive numbers between commas.

    Raises:
        CliError: one is none.
    """
    try:
        found = [kind(part) for part in text.split(",")]
        if all(0 < number < NO_LIMIT for number in found):
            return found
    except ValueError:
        pass
    raise CliError(f"{option} takes positive numbers between commas, not {text!r}")
