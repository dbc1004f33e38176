"""Start-up and shutdown of the worker process: settings in, a serving worker out."""

import asyncio
import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import grpc.aio
import torch
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from kernels import BackendError, allocate_host_pool, allocate_pool, backend
from model_worker.engine.batch import Limits
from model_worker.engine.decode_graphs import CudaCapture, DecodeGraphs
from model_worker.engine.engine import Engine
from model_worker.engine.host_tier import HostTier, NoHostTier, StreamedHostTier, Swaps
from model_worker.engine.manager_client import GrpcManagerClient, ManagerClient
from model_worker.engine.runner import ModelRunner
from model_worker.memory import MemoryPlan, StartError, describe, plan_memory
from model_worker.metrics import serve_metrics
from model_worker.model.errors import ModelLoadError
from model_worker.model.loader import LoadedModel, load_model, local_model
from model_worker.registration import Announcer, announced_address
from model_worker.requests import ModelLimits, RequestReader
from model_worker.sampling.grammar import GrammarCompiler
from model_worker.servicer import Worker, WorkerServicer
from model_worker.settings import WorkerSettings
from model_worker.streams import StreamTable
from model_worker.tokenizer_files import tokenizer_files
from model_worker.vllm_face.prefix_cache import PrefixCache
from model_worker.vllm_face.servicer import VllmEngineServicer
from octavo.kv.v1 import attach_pb2, common_pb2
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service import traced_calls, tracing
from service.listening import check_free
from service.process import announce_ready
from service.serving import Server, catch_signals
from service.settings import SettingsError
from service.tenants import read_kv_quotas
from service.tracing import TracingError

logger = logging.getLogger(__name__)

SERVICES = ("octavo.worker.v1.WorkerService", "vllm.grpc.engine.VllmEngine")
TRACED: traced_calls.Methods = {f"{service}/Generate": {} for service in SERVICES}
LOOK_SECONDS = 0.5
SILENT_SECONDS = 3.0
# For callers to read how their streams ended, before the transport is cut.
LAST_WORD_SECONDS = 1.0


def run(settings: WorkerSettings, manager: ManagerClient | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status. Called by ``start.run``, which sets the log up.

    Args:
        settings: as from ``settings.load``.
        manager: the way steps go to the KV manager; None is by gRPC, to ``settings.manager``, as all other calls go.
    """
    try:
        for files in (settings.server_tls, settings.manager_tls, settings.gateway_tls):
            if files is not None:
                files.read()  # a channel is opened where nobody hears that its files are wrong
        if settings.metrics:
            check_free(settings.metrics, "--metrics")  # it is bound when the model is loaded, which can take minutes
        settings = _with_local_model(settings)
        plan = plan_memory(settings)
        logger.info("%s", describe(plan))
        backend(plan.device.type)  # one that was forced and cannot run is refused before the model is loaded
        _tenant_limits(settings)  # a file that is wrong as well
        tracing.set_up("worker", wanted=settings.tracing)
        client = manager or GrpcManagerClient(settings.manager, settings.manager_tls, settings.lease_patience)
        return asyncio.run(_serve(settings, plan, client))
    except (StartError, ModelLoadError, BackendError, OSError, SettingsError, TracingError) as error:
        logger.error("%s", error)
        return 1
    finally:
        tracing.shut_down()


def _with_local_model(settings: WorkerSettings) -> WorkerSettings:
    """The same with the model's folder or file; a hub id is fetched once, here, and stays the name clients use."""
    place = local_model(settings.model)
    name = place.resolve().name if place == settings.model else str(settings.model)
    return settings.model_copy(update={"model": place, "served_name": settings.served_name or name})


async def _serve(settings: WorkerSettings, plan: MemoryPlan, client: ManagerClient) -> int:
    """The port is open from the first moment, not ready; readiness follows the model and the manager."""
    loop = asyncio.get_running_loop()
    worker = Worker(secrets.token_hex(8), settings.max_queued, StreamTable(loop), state="loading the model")
    cache = PrefixCache(settings.manager, settings.manager_tls)

    def register(grpc_server: grpc.aio.Server) -> None:
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(WorkerServicer(worker), grpc_server)
        second = VllmEngineServicer(worker, settings.model, cache)
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(second, grpc_server)

    server = Server(SERVICES, register, settings.server_tls, traced_calls.interceptors(TRACED))
    address = await server.start(settings.listen)
    stopping = catch_signals()
    readiness = Readiness(worker, server, address)
    announcer = Announcer(
        settings.gateways,
        announced_address(settings.advertise, address),
        worker.worker_id,
        settings.gateway_token,
        settings.gateway_tls,
    )
    announcing = asyncio.create_task(announcer.run())
    starting = asyncio.create_task(_start(settings, plan, client, worker, readiness))
    try:
        begun: list[asyncio.Future[Any]] = [starting, stopping]
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            failing = asyncio.create_task(starting.result().wait())
            assert worker.engine is not None
            watching = asyncio.create_task(readiness.watch(worker.engine))
            ends: list[asyncio.Future[Any]] = [failing, stopping]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            failing.cancel()
            watching.cancel()
        failed = not stopping.done()
        if not failed:
            logger.info("%s: draining for up to %g s", stopping.result().name, settings.grace_seconds)
    except BaseException:
        await server.stop(0.0)  # a server that is left to the loop's end writes a traceback behind the reason
        raise
    finally:
        starting.cancel()
        stopping.cancel()
        announcing.cancel()
    await cache.close()  # whoever follows its events would hold the drain up to its last second
    await asyncio.gather(announcer.leave(), _drain(server, worker, 0.0 if failed else settings.grace_seconds))
    if worker.engine is None:
        client.close()
    return 1 if failed else 0


async def _drain(server: Server, worker: Worker, grace_seconds: float) -> None:
    """Let streams end within the grace; the engine ends the others, with a word that has a gateway move them."""
    leaving = asyncio.create_task(server.stop(grace_seconds + LAST_WORD_SECONDS))
    await asyncio.wait((leaving,), timeout=grace_seconds)
    if worker.engine is not None:
        await asyncio.to_thread(worker.engine.stop)
    await leaving


async def _start(
    settings: WorkerSettings, plan: MemoryPlan, client: ManagerClient, worker: Worker, readiness: "Readiness"
) -> asyncio.Event:
    """Load the model and start the engine. Returns an event that is set when the engine has failed."""
    loop = asyncio.get_running_loop()
    failed = asyncio.Event()
    worker.tokenizer = await _in_thread(lambda: tokenizer_files(settings.model))
    eos = frozenset(plan.config.eos_token_ids)
    limits = ModelLimits(plan.config.vocab_size, plan.max_context, eos, settings.max_sequences)
    tokenizer_json = worker.tokenizer.get("tokenizer.json")
    grammars = GrammarCompiler(tokenizer_json.decode() if tokenizer_json else None, limits.vocab_size, tuple(eos))
    threading.Thread(target=grammars.prepare, daemon=True).start()  # while the weights are read
    loaded, pool = await _in_thread(lambda: _load(settings, plan))
    swaps = await _in_thread(lambda: _host_tier(plan, pool))
    worker.model = _describe(settings, plan, loaded, worker.worker_id)
    worker.reader = RequestReader(limits, grammars)
    worker.state = f"attaching pool {settings.pool!r} to the KV manager at {settings.manager}"
    worker.engine = Engine(
        spec=attach_pb2.PoolSpec(
            pool=settings.pool,
            worker_id=worker.worker_id,
            num_blocks=plan.shape.num_blocks,
            block_size=plan.shape.block_size,
            block_bytes=plan.shape.block_bytes,
            model_fingerprint=loaded.fingerprint,
            host_blocks=plan.host_blocks,
            watermark_blocks=settings.watermark,
            reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
            swaps_on_own_stream=isinstance(swaps, StreamedHostTier),
            tenant_limits=_tenant_limits(settings),
        ),
        limits=Limits(
            num_blocks=plan.shape.num_blocks,
            block_size=plan.shape.block_size,
            max_batch_tokens=settings.max_batch_tokens,
            max_sequences=settings.max_sequences,
            max_chunk=settings.prefill_chunk or settings.max_batch_tokens,
            watermark_blocks=settings.watermark,
            ageing_seconds=settings.ageing_seconds,
        ),
        swaps=swaps,
        runner=ModelRunner(loaded.model, pool, plan.shape.block_size, _decode_graphs(settings, plan, loaded, pool)),
        manager=client,
        emit=worker.streams.deliver,
        on_ready=lambda ready, state: readiness.report(loop, ready, state),
        on_failure=lambda: loop.call_soon_threadsafe(failed.set),
    )
    if settings.metrics:
        readiness.metrics = serve_metrics(settings.metrics, worker, worker.engine)
    worker.engine.start()
    return failed


def _tenant_limits(settings: WorkerSettings) -> list[attach_pb2.TenantLimit]:
    """The quotas of the tenants file; they hold from one attach to the next.

    Raises:
        SettingsError: the file cannot be used.
    """
    if settings.tenants is None:
        return []
    quotas = read_kv_quotas(settings.tenants)
    return [attach_pb2.TenantLimit(tenant=root, **quota._asdict()) for root, quota in quotas.items()]


class Readiness:
    """Carries the engine's state to health and to the ready line."""

    def __init__(self, worker: Worker, server: Server, address: str) -> None:
        self._worker = worker
        self._server = server
        self._address = address
        self._announced = False
        self._engine_says: tuple[bool, str] | None = None
        self.metrics: str | None = None

    def report(self, loop: asyncio.AbstractEventLoop, ready: bool, state: str) -> None:
        """Called by the engine's thread."""
        asyncio.run_coroutine_threadsafe(self._hear(ready, state), loop)

    async def watch(self, engine: Engine) -> None:
        """Notice a ``Drain``, and a manager that neither answers nor hangs up, as the engine, waiting, cannot."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._worker.draining and self._server.ready:
                logger.info("draining, as an operator asks: nothing new is taken, what runs goes on")
                await self._server.set_ready(False)
            silent = engine.silent_seconds
            if silent > SILENT_SECONDS and self._worker.ready:
                logger.warning("the KV manager has not answered for %.0f s", silent)
                await self._show(False, "the KV manager does not answer")
            elif silent == 0.0 and (said := self._engine_says) and (self._worker.ready, self._worker.state) != said:
                logger.info("the KV manager answers again")
                await self._show(*said)

    async def _hear(self, ready: bool, state: str) -> None:
        self._engine_says = (ready, state)
        await self._show(ready, state)
        if ready and not self._announced:
            self._announced = True
            name = self._worker.model.model if self._worker.model else ""
            announce_ready("model_worker", self._address, metrics=self.metrics, model=name)

    async def _show(self, ready: bool, state: str) -> None:
        self._worker.ready, self._worker.state = ready, state
        await self._server.set_ready(ready and not self._worker.draining)


Result = TypeVar("Result")


async def _in_thread(function: Callable[[], Result]) -> Result:
    """Run in a daemon thread, which a stop need not wait for, unlike a thread of the default executor."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(Result, result))

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await done


def _load(settings: WorkerSettings, plan: MemoryPlan) -> tuple[LoadedModel, torch.Tensor]:
    # A worker that was given some of the cores (taskset, a container's cpuset) leaves the others alone.
    torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
    shown = -1.0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        fraction = done / max(total, 1)
        if fraction - shown >= 0.05 or fraction == 1.0:
            shown = fraction
            logger.info("loading the model: %d %%", round(fraction * 100), extra={"progress": round(fraction, 3)})

    quantization = None if settings.weights == "auto" else settings.weights
    loaded = load_model(
        settings.model, plan.dtype, plan.device, progress, max_context=plan.max_context, quantization=quantization
    )
    try:
        pool = allocate_pool(plan.shape, plan.device)
    except (RuntimeError, MemoryError, OSError) as error:
        raise StartError(
            f"no memory for {plan.shape.pool_bytes} bytes of KV blocks, lower --num-blocks or --kv-memory-gib: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return loaded, pool


def _decode_graphs(
    settings: WorkerSettings, plan: MemoryPlan, loaded: LoadedModel, pool: torch.Tensor
) -> DecodeGraphs | None:
    """Graphs for every batch that may decode, captured as they come; None where the model allows none."""
    if plan.device.type != "cuda" or not settings.cuda_graphs or not loaded.model.capturable:
        return None
    size = plan.shape.block_size
    most_blocks = -(-plan.max_context // size)
    return DecodeGraphs(loaded.model, pool, settings.max_sequences, most_blocks, size, CudaCapture(pool.device))


def _host_tier(plan: MemoryPlan, pool: torch.Tensor) -> Swaps:
    """The host tier that the plan asks for."""
    if not plan.host_blocks:
        return NoHostTier()
    on_gpu = plan.device.type == "cuda"
    try:
        host = allocate_host_pool(plan.shape, plan.host_blocks, pinned=on_gpu)
    except (RuntimeError, MemoryError, OSError) as error:
        size = plan.host_blocks * plan.shape.block_bytes
        raise StartError(f"no memory for {size} bytes of host blocks, lower --host-memory-mib: {error}") from error
    return StreamedHostTier(pool, host) if on_gpu else HostTier(pool, host)


def _describe(
    settings: WorkerSettings, plan: MemoryPlan, loaded: LoadedModel, worker_id: str
) -> worker_pb2.GetModelResponse:
    config = plan.config
    description = worker_pb2.GetModelResponse(
        header=worker_pb2.ResponseHeader(worker_id=worker_id),
        model=settings.served_name,
        architecture=config.architecture,
        model_fingerprint=loaded.fingerprint,
        vocab_size=config.vocab_size,
        max_context=plan.max_context,
        eos_token_ids=config.eos_token_ids,
        dtype=plan.dtype_name,
        kv_dtype=plan.dtype_name,
        device=str(plan.device),
        pool=settings.pool,
        block_size=plan.shape.block_size,
        num_blocks=plan.shape.num_blocks,
        block_bytes=plan.shape.block_bytes,
        max_batch_tokens=settings.max_batch_tokens,
        max_sequences=settings.max_sequences,
    )
    if config.bos_token_id is not None:
        description.bos_token_id = config.bos_token_id
    return description
