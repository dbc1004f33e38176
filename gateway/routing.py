"""Which worker serves a request, and whether any can."""

import time
from collections.abc import Collection, Iterable, Sequence

import grpc

from gateway.models import ServedModel
from gateway.policies import LeastLoad, Policy, Wanted
from gateway.routing_metrics import RoutingMetrics
from gateway.workers import Worker
from octavo.kv.v1 import common_pb2
from service.errors import ServiceError, invalid_argument

RETRY_SECONDS = 1.0


class Router:
    """Routes by model name to a usable worker.

    Args:
        workers: those known from the start.
        policy: chooses among the usable workers of a model; None chooses by load.
        metrics: told of each choice.
    """

    def __init__(
        self, workers: Iterable[Worker], policy: Policy | None = None, metrics: RoutingMetrics | None = None
    ) -> None:
        self._workers = tuple(workers)
        self._policy = policy or LeastLoad()
        self._metrics = metrics

    @property
    def workers(self) -> Sequence[Worker]:
        """All workers, usable or not; one that is known by several addresses once, by one that works if any does."""
        distinct: dict[str, Worker] = {}
        for worker in self._workers:
            identity = worker.worker_id or worker.address
            known = distinct.setdefault(identity, worker)
            if known.trouble is not None and worker.trouble is None:
                distinct[identity] = worker
        return tuple(distinct.values())

    def add(self, worker: Worker) -> None:
        """Route to a worker from now on, once it can be used."""
        self._workers = (*self._workers, worker)

    def remove(self, worker: Worker) -> None:
        """Route nothing more to a worker; what runs on it is left alone."""
        self._workers = tuple(one for one in self._workers if one is not worker)

    @property
    def ready(self) -> bool:
        """Whether some worker can be used."""
        return any(worker.trouble is None for worker in self._workers)

    def models(self) -> list[tuple[ServedModel, int]]:
        """The known models by name, each with the number of workers that serve it now.

        A name that workers use for different models (an upgrade that is half done) stands for the one with the most
        usable workers.
        """
        usable: dict[ServedModel, int] = {}
        for worker in self.workers:
            if worker.model is not None:
                usable[worker.model] = usable.get(worker.model, 0) + (worker.trouble is None)
        by_name: dict[str, ServedModel] = {}
        for model, count in usable.items():
            rival = by_name.get(model.name)
            if rival is None or usable[rival] < count:
                by_name[model.name] = model
        return [(by_name[name], usable[by_name[name]]) for name in sorted(by_name)]

    def model(self, name: str) -> ServedModel:
        """The model of a name; of the empty name, the only one.

        Raises:
            ServiceError: NOT_FOUND with the known names, INVALID_ARGUMENT when a name is needed, UNAVAILABLE when no
                worker has told yet what it serves.
        """
        known = {model.name: model for model, _ in self.models()}
        if not known:
            raise self._unavailable(self._workers)
        if name in known:
            return known[name]
        names = ", ".join(known)
        if name:
            raise ServiceError(
                grpc.StatusCode.NOT_FOUND,
                f"no model is served under that name; served: {names}",
                reason="UNKNOWN_MODEL",
                metadata={"served": names},
            )
        if len(known) > 1:
            raise invalid_argument("model", f"empty, but several are served: {names}")
        return next(iter(known.values()))

    async def pick(
        self,
        model: ServedModel,
        token_ids: Sequence[int] = (),
        *,
        request_id: str = "",
        root: common_pb2.PrefixRoot | None = None,
        excluded: Collection[Worker] = (),
    ) -> Worker:
        """The worker for one more request of a model, on whose load the request counts from now on.

        Args:
            model: what the request wants, as from ``model``.
            token_ids: what the worker will be sent: the prompt, and after it what was generated already.
            request_id: the request's name, as the worker will be told it.
            root: the prefix root of the request; None is the empty one.
            excluded: workers that failed the request already.

        Raises:
            ServiceError: UNAVAILABLE, saying what is wrong with each of its workers.
        """
        serving = [worker for worker in self.workers if worker.model is model]
        failed = {worker.worker_id or worker.address for worker in excluded}
        left = [worker for worker in serving if (worker.worker_id or worker.address) not in failed]
        usable = [worker for worker in left if worker.trouble is None]
        if not usable:
            raise self._unavailable(left or serving or self._workers)
        now = time.monotonic()
        # Where the circuits of all are open nothing is gained by refusing: any of them may have come to itself.
        closed = [worker for worker in usable if worker.circuit.takes_calls(now)] or usable
        choice = await self._policy.choose(closed, Wanted(token_ids, root or common_pb2.PrefixRoot()))
        choice.worker.workload.book(request_id, choice.chain, choice.prompt_tokens)
        if self._metrics is not None:
            self._metrics.left_out(len(usable) - len(closed))
            self._metrics.routed(len(token_ids), max(0, len(token_ids) - choice.prompt_tokens))
        return choice.worker

    def _unavailable(self, workers: Sequence[Worker]) -> ServiceError:
        troubles = {worker.address: worker.trouble.reason for worker in workers if worker.trouble is not None}
        said = "; ".join(f"{address}: {reason}" for address, reason in troubles.items()) or "the request failed on all"
        return ServiceError(
            grpc.StatusCode.UNAVAILABLE,
            f"no worker is ready: {said}",
            reason="NO_WORKER_READY",
            metadata=troubles,
            retry_seconds=RETRY_SECONDS,
        )
