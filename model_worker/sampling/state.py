"""What the sampler keeps of one sequence between its steps."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RowState:
    """The states of the logits processors that apply to a sequence, by processor; most sequences have none.

    Attributes:
        seen: how many of the sequence's tokens, prompt included, the states know.
        by_processor: each as its processor made it.
    """

    seen: int = 0
    by_processor: dict[int, Any] = field(default_factory=dict)
