"""What changes the logits of some rows before a token is chosen, and the seam for more of it.

A processor is one object for the whole engine. What it knows of a sequence is a state: made from the prompt, told of
every token that follows, and so made again from the prompt and the tokens so far after a migration. A preempted
sequence keeps its states; a sequence to which no processor applies has none, and costs nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from model_worker.sampling.params import SamplingParams, StopConditions
from model_worker.sampling.state import RowState

State = TypeVar("State")


class SampledRow(Protocol):
    """A sequence as the sampler sees it.

    Attributes:
        sampling: how its tokens are chosen.
        stop: when it ends.
        tokens: the prompt and what was generated; only ever grows.
        prompt_length: how many of them are the prompt.
        sampler_state: the sampler's; None before it first sampled here.
    """

    sampling: SamplingParams
    stop: StopConditions
    tokens: list[int]
    prompt_length: int
    sampler_state: RowState | None


class LogitsProcessor(Protocol[State]):
    """Changes logits, for all rows to which it applies at once."""

    def begin(self, row: SampledRow) -> State | None:
        """The state of a sequence after its prompt, ``row.tokens[: row.prompt_length]``; None: it does not apply."""
        ...

    def accept(self, state: State, token: int) -> None:
        """A token that was generated next."""
        ...

    def apply(self, logits: Tensor, rows: Sequence[int], states: Sequence[State]) -> None:
        """Change rows of ``logits``, float32 ``[batch, vocab]`` and contiguous, in place.

        ``states[i]`` belongs to ``logits[rows[i]]``; no row is named twice, and there is at least one.
        """
        ...


class Processors(Generic[State]):
    """The processors of an engine, in the order in which they apply."""

    def __init__(self, processors: Iterable[LogitsProcessor[State]]) -> None:
        self._processors = tuple(processors)

    def apply(self, logits: Tensor, rows: Sequence[SampledRow]) -> None:
        """Bring the states of all rows up to date and change ``logits[i]`` for ``rows[i]`` in place."""
        places: list[list[int]] = [[] for _ in self._processors]
        states: list[list[State]] = [[] for _ in self._processors]
        for place, row in enumerate(rows):
            for which, state in self._state_of(row).by_processor.items():
                places[which].append(place)
                states[which].append(state)
        for which, processor in enumerate(self._processors):
            if places[which]:
                processor.apply(logits, places[which], states[which])

    def _state_of(self, row: SampledRow) -> RowState:
        known = row.sampler_state
        if known is None:
            begun = {which: processor.begin(row) for which, processor in enumerate(self._processors)}
            applying = {which: state for which, state in begun.items() if state is not None}
            known = row.sampler_state = RowState(row.prompt_length, applying)
        if known.by_processor:
            for token in row.tokens[known.seen :]:
                for which, state in known.by_processor.items():
                    self._processors[which].accept(state, token)
            known.seen = len(row.tokens)
        return known
