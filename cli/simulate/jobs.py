"""Requests while they are served, and what passes between the scheduler and a memory."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cli.simulate.workload import Request


@dataclass(slots=True, eq=False)
class Job:
    """A request in the system; of ``width`` sequences that decode in step once their prompt is there.

        length    0 .......... prompt .......... prefill .......... final
                  | computed in chunks          | a token per step  |

    Attributes:
        number: place in the order of arrival, from 1; also the token id that its prompt repeats.
        width: parallel samples or beams.
        prefill: tokens to compute before the next one is sampled: the prompt, after a preemption what was there too.
        computed: tokens computed so far, while it prefills.
        start: the step that computed the last token of ``prefill``, 0 before. A decoding job's length follows from it.
        event: the step at which it next needs the memory; 0 for none.
        counted: sequences that the scheduler counts for it, as many as it has forked to.
        members: ids of its sequences, one until it forks.
        blocks: length of a member's table.
        known: tokens per member whose ids the manager knows.
        unwritten: members that write for the first time since a fork with their next token.
        again: it was preempted.
        place: where a contiguous allocator has put it, and how many slots it took.
    """

    number: int
    request: Request
    width: int
    prefill: int
    computed: int = 0
    start: int = 0
    event: int = 0
    counted: int = 1
    members: list[int] = field(default_factory=list)
    blocks: int = 0
    known: int = 0
    unwritten: set[int] = field(default_factory=set)
    again: bool = False
    place: tuple[int, int] | None = None

    @classmethod
    def of(cls, number: int, request: Request, width: int) -> "Job":
        """A job that has just arrived."""
        return cls(number, request, width, request.prompt_tokens)

    @property
    def final(self) -> int:
        """Its length when it ends."""
        return self.request.kv_tokens

    def length_before(self, step: int) -> int:
        """Tokens stored per member when ``step`` begins."""
        return self.prefill + step - 1 - self.start if self.start else self.computed


class Grow(NamedTuple):
    """A decoding job whose next token the memory must hear of.

    Attributes:
        length: tokens per member before this step.
    """

    job: Job
    length: int


class Chunk(NamedTuple):
    """A job's next part of its prompt: tokens [job.computed, end)."""

    job: Job
    end: int


@dataclass(slots=True)
class Plan:
    """What a step wants of the memory, in the order in which it is to be served.

    Attributes:
        released: jobs that have ended.
        queue: jobs that wait, first come first; the memory leaves them there.
        budget: prompt tokens that may still be computed for jobs from the queue.
        max_admits: the most jobs to take from the queue.
    """

    step: int
    released: list[Job]
    growing: list[Grow]
    chunks: list[Chunk]
    queue: deque[Job]
    budget: int
    max_admits: int


@dataclass(slots=True)
class Outcome:
    """What the memory granted.

    Attributes:
        admitted: the first jobs of the queue, each with (tokens found cached, length after this step).
        stalled: jobs of ``growing`` and ``chunks`` that must ask again.
        preempted: jobs that lost their memory, in the order in which they did.
        rejected: jobs that can never be served.
    """

    admitted: list[tuple[Job, int, int]] = field(default_factory=list)
    stalled: set[Job] = field(default_factory=set)
    preempted: list[Job] = field(default_factory=list)
    rejected: list[Job] = field(default_factory=list)


class Usage(NamedTuple):
    """Slots of the memory by what they hold; the four add up to all slots.

    Attributes:
        tokens: keys and values of a token.
        reserved: kept for a token that is still to come.
        internal: kept for a sequence that will never fill them.
        external: kept for nobody.
    """

    tokens: int
    reserved: int
    internal: int
    external: int


class Memory(Protocol):
    """KV memory under some allocator."""

    def serve(self, plan: Plan) -> Outcome:
        """One step."""

    def asks_at(self, job: Job) -> int:
        """The length at which a decoding job has to ask next."""

    def usage(self, table_tokens: int) -> Usage:
        """How the memory is used now.

        Args:
            table_tokens: lengths of all sequences together.
        """

    def saved(self) -> tuple[int, int]:
        """(blocks that sequences share instead of having their own, blocks that all tables name)."""
