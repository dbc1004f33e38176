"""The operators' surface: which workers there are, what tenants take, and a drain without an end of its own."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from gateway.metrics import Metrics
from gateway.routing import Router
from gateway.tenancy.gate import Gate
from gateway.tenancy.grpc_door import current_tenant
from gateway.tenancy.usage import Usage
from gateway.workers import Worker
from octavo.gateway.v1 import operator_pb2, operator_pb2_grpc
from service.errors import ServiceError

SERVICE = operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].full_name


class OperatorServicer(operator_pb2_grpc.OperatorServiceServicer):
    """``octavo.gateway.v1.OperatorService``.

    Args:
        router: knows the workers.
        gate: knows the tenants and what they take.
        metrics: counts calls.
        drain: has all surfaces refuse what is new.
    """

    def __init__(self, router: Router, gate: Gate, metrics: Metrics, drain: Callable[[], Awaitable[None]]) -> None:
        self._router = router
        self._gate = gate
        self._metrics = metrics
        self._drain = drain

    async def ListWorkers(
        self, request: operator_pb2.ListWorkersRequest, context: Any
    ) -> operator_pb2.ListWorkersResponse:
        with self._metrics.call("ListWorkers"):
            self._check_operator()
            now = time.monotonic()
            workers = sorted(self._router.workers, key=lambda worker: worker.address)
            return operator_pb2.ListWorkersResponse(workers=[_worker_status(worker, now) for worker in workers])

    async def ListTenants(
        self, request: operator_pb2.ListTenantsRequest, context: Any
    ) -> operator_pb2.ListTenantsResponse:
        with self._metrics.call("ListTenants"):
            self._check_operator()
            return operator_pb2.ListTenantsResponse(
                tenants=[_tenant_status(usage) for usage in self._gate.usage()],
                unauthenticated_calls=self._gate.metrics.unauthenticated_calls,
            )

    async def Drain(self, request: operator_pb2.DrainRequest, context: Any) -> operator_pb2.DrainResponse:
        with self._metrics.call("Drain"):
            self._check_operator()
            if self._gate.open:
                message = "without a tenants file nobody is known to be an operator: stop the process by SIGTERM"
                raise ServiceError(grpc.StatusCode.FAILED_PRECONDITION, message, reason="NO_OPERATOR")
            await self._drain()
            return operator_pb2.DrainResponse(running_calls=self._gate.running)

    def _check_operator(self) -> None:
        if not current_tenant().operator:
            message = "this service is for operators: a key of one is needed"
            raise ServiceError(grpc.StatusCode.PERMISSION_DENIED, message, reason="OPERATORS_ONLY")


def _worker_status(worker: Worker, now: float) -> operator_pb2.WorkerStatus:
    return operator_pb2.WorkerStatus(
        address=worker.address,
        worker_id=worker.worker_id,
        model="" if worker.model is None else worker.model.name,
        pool=worker.pool,
        trouble="" if worker.trouble is None else worker.trouble.reason,
        left_out=worker.trouble is None and not worker.circuit.takes_calls(now),
        samples=worker.workload.samples,
        load_tokens=worker.workload.tokens,
        max_sequences=worker.max_sequences,
    )


def _tenant_status(usage: Usage) -> operator_pb2.TenantStatus:
    tenant, totals, limits = usage.tenant, usage.totals, usage.tenant.limits
    return operator_pb2.TenantStatus(
        tenant=tenant.name,
        operator=tenant.operator,
        running_calls=usage.running_calls,
        waiting_requests=usage.waiting_requests,
        calls=totals.calls,
        refused_requests=totals.refused_requests,
        prompt_tokens=totals.prompt_tokens,
        generated_tokens=totals.generated_tokens,
        wait_seconds=totals.wait_seconds,
        tokens_left=_limited(usage.tokens_left),
        tokens_per_minute=_limited(limits.tokens_per_minute),
        concurrent_requests=None if math.isinf(limits.concurrent_requests) else int(limits.concurrent_requests),
        requests_per_second=_limited(limits.requests_per_second),
    )


def _limited(value: float) -> float | None:
    return None if math.isinf(value) else value
