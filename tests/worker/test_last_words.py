"""How streams end whose sequences have no end of their own, because their worker goes away."""

import grpc
import pytest
from scheduler_loop import make_sequence

from model_worker.engine.batch import Ended
from model_worker.engine.engine import BROKEN, STOPPED
from model_worker.engine.progress import Progress
from model_worker.engine.sequence import EndReason
from model_worker.servicer import finished
from service.errors import ServiceError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("reason", "message", "code", "said"),
    [
        # A gateway moves the first two; the second counts as a worker lost, which the request may have caused.
        (None, STOPPED, grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"),
        (None, BROKEN, grpc.StatusCode.UNAVAILABLE, "ENGINE_FAILED"),
        (EndReason.FAILED, "step 3 failed", grpc.StatusCode.INTERNAL, "STEP_FAILED"),
    ],
)
def test_a_gateway_hears_why(reason: EndReason | None, message: str, code: grpc.StatusCode, said: str) -> None:
    sequence = make_sequence([1, 2], max_tokens=5)
    sequence.end_reason = reason
    with pytest.raises(ServiceError, match=message) as caught:
        finished(Progress(sequence, (), Ended(sequence, message), 3))
    assert (caught.value.code, caught.value.reason) == (code, said)
