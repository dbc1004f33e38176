"""The gateway as a process: starts the server, follows its workers' health, drains at a signal."""

import asyncio
import gc
import logging

import grpc.aio

from gateway import discovery, spans
from gateway.fleet import Fleet
from gateway.http.server import HttpServer
from gateway.http.surface import Surface
from gateway.metrics import Metrics
from gateway.migration import MigrationPolicy, Migrations
from gateway.models import ModelCache
from gateway.naming import Naming
from gateway.operating import SERVICE as OPERATING
from gateway.operating import OperatorServicer
from gateway.policies import policy_of
from gateway.prefix_lookup import PrefixLookup
from gateway.registry import SERVICE as REGISTRY
from gateway.registry import Leases, RegistryServicer
from gateway.registry import follow as follow_announced
from gateway.routing import Router
from gateway.routing_metrics import RoutingMetrics
from gateway.servicer import SERVICE, GatewayServicer
from gateway.settings import GatewaySettings
from gateway.tenancy.capacity import capacity_of
from gateway.tenancy.directory import Directory
from gateway.tenancy.gate import Gate, QueueBounds
from gateway.tenancy.grpc_door import Door
from gateway.tenancy.metrics import TenantMetrics
from gateway.text.tokenizer import Tokenizer, TokenizerError
from gateway.watching import watching
from gateway.workers import Worker
from octavo.gateway.v1 import gateway_pb2_grpc, operator_pb2_grpc, registry_pb2_grpc
from service import logs, model_settings, traced_calls, tracing
from service.event_loop import BurstLoop
from service.process import announce_ready, follow_parent, raise_open_files
from service.serving import Server, catch_signals
from service.settings import SettingsError
from service.tracing import TracingError

logger = logging.getLogger(__name__)

NAME = "gateway"


class Readiness:
    """Health that follows the workers, and the ready line when some worker can be used for the first time."""

    def __init__(
        self,
        server: Server,
        router: Router,
        migrations: Migrations,
        gate: Gate,
        grpc_address: str,
        **more: object,
    ) -> None:
        self._server = server
        self._router = router
        self._migrations = migrations
        self._gate = gate
        self._grpc_address = grpc_address
        self._more = more
        self._announced = False

    async def update(self) -> None:
        """Call whenever a worker changed."""
        self._migrations.workers_changed()
        self._gate.room_changed()
        ready = self._router.ready and not self._gate.draining
        if ready != self._server.ready:
            await self._server.set_ready(ready)
            logger.info("%s", "ready" if ready else "not ready: no worker can be used")
        if ready and not self._announced:
            self._announced = True
            # What start-up allocated lives as long as the process; the collector, which took 40 ms over it, need not
            # walk it again while streams wait.
            gc.collect()
            gc.freeze()
            models = [model.name for model, _ in self._router.models()]
            announce_ready(NAME, self._grpc_address, **self._more, models=models)


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        OSError: an address cannot be bound, or a TLS file cannot be read.
        TokenizerError: the tokenizer folder of the settings is no such folder.
        SettingsError: the tenants file cannot be used.
    """
    caught = catch_signals()
    for files in (settings.server_tls, settings.worker_tls, settings.manager_tls):
        if files is not None:
            files.read()  # a channel is opened where nobody hears that its files are wrong
    metrics = Metrics()
    models = ModelCache(Tokenizer.from_folder(settings.tokenizer) if settings.tokenizer else None)
    routing = RoutingMetrics(metrics.registry)
    lookup = PrefixLookup(settings.managers, settings.manager_tls, settings.routing_lookup_seconds, routing)
    router = Router((), policy_of(settings, lookup), routing)
    metrics.show_readiness(lambda: router.ready)
    policy = MigrationPolicy(settings.migration_wait_seconds, settings.max_migrations, settings.max_worker_losses)
    migrations = Migrations(router, policy, metrics.registry)
    directory = Directory(settings.tenants)
    bounds = QueueBounds(settings.ageing_seconds, settings.max_queued)
    capacity = capacity_of(lambda: router.workers, settings.max_running)
    gate = Gate(directory, capacity, bounds, TenantMetrics(metrics.registry))
    servicer = GatewayServicer(router, settings, metrics, migrations, gate)
    surface = Surface(router, settings, metrics, migrations, gate)

    async def drain() -> None:
        """Take nothing new any more; what runs is left alone."""
        if not gate.draining:
            logger.info("draining, as an operator asks: nothing new is taken, what runs goes on")
        gate.draining = surface.draining = True
        await server.set_ready(False)

    operating = OperatorServicer(router, gate, metrics, drain)
    leases = Leases(settings.registration_lease_seconds)
    registry = RegistryServicer(leases, settings.registration_token) if settings.registration_token else None

    def register(target: grpc.aio.Server) -> None:
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(servicer, target)
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(operating, target)
        if registry is not None:
            registry_pb2_grpc.add_RegistryServiceServicer_to_server(registry, target)

    server = Server(
        [SERVICE, OPERATING] if registry is None else [SERVICE, OPERATING, REGISTRY],
        register,
        settings.server_tls,
        [Naming(), *traced_calls.interceptors(spans.GRPC), Door(gate)],
    )
    metrics_address = metrics.serve(settings.metrics) if settings.metrics else None
    grpc_address = await server.start(settings.listen)
    http = HttpServer(surface, settings.server_tls)
    try:
        http_address = await http.start(settings.http_listen) if settings.http_listen else None
    except OSError:
        await server.stop(0)
        raise
    logger.info(
        "listening on %s, waiting for a worker", grpc_address, extra={"grpc": grpc_address, "http": http_address}
    )
    told = {
        "tls": settings.server_tls is not None,
        "http": http_address,
        "inspector": http_address if settings.inspect else None,
        "metrics": metrics_address,
    }
    readiness = Readiness(server, router, migrations, gate, grpc_address, **told)
    # A certificate cannot know the addresses that its name stands for: what it has to be for is the name.
    fleet = Fleet(router, lambda address, name: Worker(address, models, settings.worker_tls, name), readiness.update)
    watchers = [
        watching(discovery.follow(fleet, settings.workers, settings.dns_seconds)),
        watching(follow_announced(fleet, leases)),
        watching(directory.watch()),
    ]
    try:
        number = await caught
        logger.info("%s: draining for up to %g s", number.name, settings.grace_seconds)
        await asyncio.gather(server.stop(settings.grace_seconds), http.stop(settings.grace_seconds))
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await fleet.close()
        await lookup.close()


def run(settings: GatewaySettings) -> int:
    """Run the gateway in this process; returns the exit status."""
    logs.set_up(NAME, settings.log_level)
    model_settings.warn_of_variables(GatewaySettings)
    follow_parent()
    raise_open_files()
    try:
        tracing.set_up(NAME, wanted=settings.tracing)
        with asyncio.Runner(loop_factory=BurstLoop) as runner:
            runner.run(serve(settings))
    except (OSError, SettingsError, TokenizerError, TracingError) as error:
        logger.error("cannot start: %s", error)
        return 1
    finally:
        tracing.shut_down()
    return 0
