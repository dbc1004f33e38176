"""A step while it is being served."""

from dataclasses import dataclass, field

from octavo.kv.v1 import steps_pb2


@dataclass(slots=True)
class StepWork:
    """The request, the answer as it grows, and what one phase has to tell the next.

    Attributes:
        release_fence: the step that must complete before what this request frees may be granted; 0 for at once.
        swap_fence: the same for the sources of its swaps out.
        promised: fenced blocks that better ranks wait for.
        stalled: somebody was preempted, refused or left waiting, so nobody is admitted or resumed any more.
        stopped_tenants: the same for these tenants only.
    """

    request: steps_pb2.StepRequest
    response: steps_pb2.StepResponse
    step: int
    release_fence: int
    swap_fence: int
    promised: int = 0
    stalled: bool = False
    stopped_tenants: set[str] = field(default_factory=set)
