"""What ``octavo workers`` and ``octavo tenants`` print, and how long waits look again."""

import pytest

from cli.gateway_lists import tenants_lines, workers_lines
from cli.waiting import LOOK_SECONDS, looks
from octavo.gateway.v1 import operator_pb2

pytestmark = pytest.mark.unit

WorkerStatus, TenantStatus = operator_pb2.WorkerStatus, operator_pb2.TenantStatus


def test_workers_say_why_they_are_not_used() -> None:
    ready = WorkerStatus(
        address="10.0.0.1:50051", model="m", pool="p", samples=12, max_sequences=32, load_tokens=12_345
    )
    drained = WorkerStatus(address="10.0.0.2:50051", trouble="draining\x1b[2J")
    failing = WorkerStatus(address="w:1", left_out=True)
    assert workers_lines([ready, drained, failing]) == [
        "worker          state                     model  pool  samples   load in tokens",
        "10.0.0.1:50051  ready                     m      p     12 of 32  12,345",
        "10.0.0.2:50051  not used                               0         0",
        "w:1             left out, its calls fail               0         0",
        "10.0.0.2:50051 cannot be used: draining\x1b[2J",  # escaped where it is printed
    ]


def test_tenants_show_limits_where_they_have_some() -> None:
    limited = TenantStatus(
        tenant="alice", running_calls=2, concurrent_requests=64, calls=1_000, prompt_tokens=9, generated_tokens=12_000,
        refused_requests=3, tokens_left=99.6, tokens_per_minute=600,
    )  # fmt: skip
    answer = operator_pb2.ListTenantsResponse(tenants=[limited, TenantStatus(tenant="b")], unauthenticated_calls=7)
    assert tenants_lines(answer) == [
        "tenant  running  waiting  calls  refused  prompt  generated  tokens left",
        "alice   2 of 64  0        1,000  3        9       12,000     100 of 600",
        "b       0        0        0      0        0       0          -",
        "calls without a key of any tenant: 7",
    ]


class Clock:
    """Time that only sleeping lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def times(self, patience: float | None, most: int) -> list[float]:
        """When the first ``most`` looks are taken."""
        seen = []
        for _ in looks(patience, lambda: self.now, self.sleep):
            seen.append(self.now)
            if len(seen) == most:
                break
        return seen


def test_a_wait_looks_at_once_again_and_at_its_end() -> None:
    assert Clock().times(0.0, 9) == [0.0]
    assert Clock().times(1.25, 9) == [0.0, LOOK_SECONDS, 2 * LOOK_SECONDS, 1.25]
    assert Clock().times(None, 3) == [0.0, LOOK_SECONDS, 2 * LOOK_SECONDS]
