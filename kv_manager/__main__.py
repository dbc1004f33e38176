"""``python -m kv_manager``: serve the KV manager until SIGTERM."""

import asyncio
import gc
import logging
import secrets
import sys
import time
from contextlib import ExitStack
from typing import Any

try:
    from kv_manager.clock import follow_leases
    from kv_manager.core.manager import Manager
    from kv_manager.metrics import ManagerCollector, MetricsServer, step_times
    from kv_manager.recording import RecordingManager, open_record
    from kv_manager.servicer import KvManagerServicer
    from kv_manager.settings import PREFIX, PROGRAM, Settings
    from octavo.kv.v1 import kv_manager_pb2_grpc
    from service import logs
    from service.listening import cannot_listen
    from service.process import announce_ready, follow_parent
    from service.serving import Server, catch_signals, drain_at_signal
    from service.settings import load, warn_of_variables
except ModuleNotFoundError as error:
    sys.exit(f"kv_manager: {error}: pip install 'octavo[kv-manager]'")

SERVICE = "octavo.kv.v1.KvManagerService"

logger = logging.getLogger(__name__)


def main() -> int:
    """Read the settings, serve, drain; returns the exit status."""
    settings = load(
        Settings,
        program=PROGRAM,
        table=PROGRAM,
        prefix=PREFIX,
        description="Serves block pools to model workers. It never sees a tensor or a text.",
    )
    logs.set_up(PROGRAM, settings.log_level)
    warn_of_variables(Settings, PREFIX)
    follow_parent()
    try:
        with ExitStack() as stack:
            asyncio.run(_serve(settings, stack))
    except (OSError, ValueError) as error:
        logger.error("%s", error)
        return 1
    return 0


def _make_manager(settings: Settings, stack: ExitStack) -> Manager:
    arguments: dict[str, Any] = {
        "manager_id": secrets.token_hex(8),
        # Epochs grow across restarts because the clock does; a manager gives far fewer than one per millisecond.
        "first_epoch": time.time_ns() // 1_000_000,
        "lease_ms": int(settings.lease_seconds * 1000),
        "max_blocks": settings.max_pool_blocks,
        "watch_token_ids": settings.watch_token_ids,
    }
    if settings.record is None:
        return Manager(**arguments)
    try:
        file, path = open_record(settings.record)
    except OSError as error:
        raise OSError(
            f"cannot record to {settings.record}: {(error.strerror or str(error)).lower()}; choose another --record"
        ) from error
    logger.info("recording to %s", path)
    manager = RecordingManager(file, **arguments)
    stack.callback(manager.close)
    return manager


async def _serve(settings: Settings, stack: ExitStack) -> None:
    caught = catch_signals()
    manager = _make_manager(settings, stack)
    times = step_times()
    servicer = KvManagerServicer(manager, times)
    server = Server(
        [SERVICE],
        lambda grpc_server: kv_manager_pb2_grpc.add_KvManagerServiceServicer_to_server(servicer, grpc_server),
        settings.tls(),
    )
    address = await server.start(settings.listen)
    metrics_server = MetricsServer(ManagerCollector(manager, times))
    try:
        metrics = await metrics_server.start(settings.metrics) if settings.metrics else None
    except OSError as error:
        await server.stop(0)
        raise cannot_listen(settings.metrics, error, "--metrics") from error
    clock = asyncio.create_task(follow_leases(manager))
    # What start-up allocated lives as long as the process; the collector need not walk it again.
    gc.collect()
    gc.freeze()
    await server.set_ready(True)
    announce_ready(PROGRAM, address, metrics=metrics)
    await drain_at_signal(server, caught, settings.grace_seconds)
    clock.cancel()
    await metrics_server.stop()


if __name__ == "__main__":
    sys.exit(main())
