"""The prefix cache of the worker's pool, which the KV manager keeps: asked by gRPC, as any other client asks it."""

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import grpc.aio
from smg_grpc_proto.generated import common_pb2

from model_worker.vllm_face.known_blocks import KnownBlocks
from model_worker.vllm_face.kv_events import CacheEvents, root_digest
from octavo.kv.v1 import kv_manager_pb2, kv_manager_pb2_grpc, watch_pb2
from octavo.worker.v1 import worker_pb2
from service.channels import TlsFiles, open_aio_channel
from service.errors import ServiceError, invalid_argument

RETRY_SECONDS = 0.1
ANSWER_SECONDS = 30.0


class PrefixCache:
    """Watches and resets the cache of one pool. Belongs to the event loop.

    Args:
        address: the manager's ``host:port``.
        tls: the way to it.
    """

    def __init__(self, address: str, tls: TlsFiles | None = None) -> None:
        self._known = KnownBlocks()
        self._watches: set[Any] = set()
        self._closed = False
        self._channel = open_aio_channel(address, tls)
        self._manager: Any = kv_manager_pb2_grpc.KvManagerServiceStub(self._channel)

    async def flush(self, pool: str, timeout_seconds: float) -> Any:
        """``FlushCacheResponse``: forget every cached prefix.

        Args:
            timeout_seconds: how long to wait for the pool to be idle; 0 asks once.

        Raises:
            ServiceError: the timeout is no time, or the manager cannot be asked.
        """
        if not (math.isfinite(timeout_seconds) and timeout_seconds >= 0):
            raise invalid_argument("timeout_s", f"{timeout_seconds}, must be a finite number of at least 0")
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while True:
            self._check_open()
            try:
                request = kv_manager_pb2.ResetPrefixCacheRequest(pool=pool)
                done = await self._manager.ResetPrefixCache(request, timeout=ANSWER_SECONDS)
                return common_pb2.FlushCacheResponse(success=True, message=f"{done.cleared_blocks} blocks forgotten")
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise _unavailable(error.code(), error.details()) from error
                if asyncio.get_running_loop().time() >= deadline:
                    return common_pb2.FlushCacheResponse(success=False, message=error.details() or "in use")
            except asyncio.CancelledError:
                self._check_open()
                raise
            await asyncio.sleep(RETRY_SECONDS)

    async def events(self, model: worker_pb2.GetModelResponse) -> AsyncGenerator[Any, None]:
        """``KvEventBatch`` messages from now on, of the model's pool. Ends only by an error, or when it is closed.

        Raises:
            ServiceError: the manager cannot be asked any more, or tells no token ids.
        """
        cache = CacheEvents(root_digest(model.model_fingerprint), model.block_size, self._known)
        request = watch_pb2.WatchRequest(pool=model.pool, include_token_ids=True)
        self._check_open()
        call = self._manager.Watch(request)
        self._watches.add(call)
        try:
            async for response in call:
                for batch in cache.batches(response):
                    yield batch
        except grpc.aio.AioRpcError as error:
            raise _unavailable(error.code(), error.details()) from error
        except asyncio.CancelledError:
            self._check_open()
            raise
        finally:
            self._watches.discard(call)
            call.cancel()

    def _check_open(self) -> None:
        """A call of a closed channel is cancelled, as if its own caller had left, or is an error of gRPC's.

        Raises:
            ServiceError: UNAVAILABLE, it is closed.
        """
        if self._closed:
            raise _unavailable(grpc.StatusCode.CANCELLED, "the worker is going away") from None

    async def close(self) -> None:
        """Let go of the connection; who waits for the manager is told."""
        self._closed = True
        for call in self._watches:
            call.cancel()  # closing the channel leaves them be
        await self._channel.close()


def _unavailable(code: grpc.StatusCode, details: str | None) -> ServiceError:
    message = f"the KV manager cannot be asked: {code.name} {details}"
    return ServiceError(grpc.StatusCode.UNAVAILABLE, message, reason="MANAGER_UNAVAILABLE", retry_seconds=1.0)
