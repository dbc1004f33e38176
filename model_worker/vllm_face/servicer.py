"""The gRPC skin of ``VllmEngine`` over the worker's own."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from model_worker.servicer import Worker, WorkerServicer
from model_worker.vllm_face.answers import Answers
from model_worker.vllm_face.archive import archive, pieces
from model_worker.vllm_face.facts import Throughput, loads, model_info, server_info
from model_worker.vllm_face.prefix_cache import PrefixCache
from model_worker.vllm_face.requests import own_request
from model_worker.vllm_face.stops import StopReader
from octavo.worker.v1 import worker_pb2
from service.errors import ServiceError


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]  # it has no types
    """``VllmEngine`` over one worker.

    Args:
        worker: what both faces serve.
        model: the model's folder or file.
        cache: the way to the prefix cache of the worker's pool.
    """

    def __init__(self, worker: Worker, model: Path, cache: PrefixCache) -> None:
        self._worker = worker
        self._model = model
        self._own = WorkerServicer(worker)
        self._cache = cache
        self._stops = StopReader()
        self._throughput = Throughput()
        self._began = time.monotonic()
        self._last_request = 0.0
        self._unstarted_tokens = 0
        self._archive: list[Any] | None = None

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._last_request = time.time()
        with self._worker.counts.refusals():
            wanted = own_request(request)
            if self._worker.tokenizer is None:
                raise _not_ready(self._worker.state)
            stops = await self._stops.read(request.sampling_params, self._worker.tokenizer)
        answers = Answers(request, wanted.token_ids, stops)
        unstarted = len(wanted.token_ids)
        self._unstarted_tokens += unstarted
        try:
            async with contextlib.aclosing(self._own.Generate(wanted, context)) as responses:
                async for response in responses:
                    self._unstarted_tokens -= unstarted
                    unstarted = 0
                    for message in answers.tell(response):
                        yield message
                    if answers.ended:
                        break
                    if answers.overtakes(response):
                        # By the name that the worker knows it by, which is its own when the caller gave none.
                        overtaken = worker_pb2.AbortSamplesRequest(
                            request_id=response.header.request_id, indexes=[response.index]
                        )
                        await self._own.AbortSamples(overtaken, context)
        finally:
            self._unstarted_tokens -= unstarted

    async def Abort(self, request: Any, context: Any) -> Any:
        for request_id in request.request_ids:
            await self._own.Abort(worker_pb2.AbortRequest(request_id=request_id), context)
        return vllm_pb2.AbortResponse()

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        stats = await self._own.GetStats(worker_pb2.GetStatsRequest(), context)
        return vllm_pb2.HealthCheckResponse(healthy=stats.ready, message=stats.state)

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        model = await self._own.GetModel(worker_pb2.GetModelRequest(), context)
        return model_info(model, self._model, self._worker.tokenizer or {})

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        model = await self._own.GetModel(worker_pb2.GetModelRequest(), context)
        uptime = time.monotonic() - self._began
        return server_info(model, len(self._worker.streams), uptime, self._last_request)

    async def GetLoads(self, request: Any, context: Any) -> Any:
        engine = self._worker.engine
        if engine is None:
            raise _not_ready(self._worker.state)
        rate = self._throughput.look(engine.statistics.generated_tokens)
        return loads(engine, rate, self._unstarted_tokens)

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        files = self._worker.tokenizer
        if files is None:
            raise _not_ready(self._worker.state)
        if self._archive is None:
            self._archive = await asyncio.to_thread(lambda: list(pieces(archive(files))))
        for piece in self._archive:
            yield piece

    async def FlushCache(self, request: Any, context: Any) -> Any:
        model = await self._own.GetModel(worker_pb2.GetModelRequest(), context)
        return await self._cache.flush(model.pool, request.timeout_s)

    async def SubscribeKvEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:
        model = await self._own.GetModel(worker_pb2.GetModelRequest(), context)
        async with contextlib.aclosing(self._cache.events(model)) as batches:
            async for batch in batches:
                yield batch

    async def Embed(self, request: Any, context: Any) -> NoReturn:
        raise _unimplemented("this worker generates text, it embeds none")

    async def StartProfile(self, request: Any, context: Any) -> NoReturn:
        raise _unimplemented("this worker has no profiler to start")

    async def StopProfile(self, request: Any, context: Any) -> NoReturn:
        raise _unimplemented("this worker has no profiler to stop")


def _unimplemented(message: str) -> ServiceError:
    return ServiceError(grpc.StatusCode.UNIMPLEMENTED, message, reason="NOT_SUPPORTED")


def _not_ready(state: str) -> ServiceError:
    return ServiceError(grpc.StatusCode.UNAVAILABLE, f"worker {state}", reason="NOT_READY", retry_seconds=1.0)
