"""How much of a prompt each worker's pool holds: asked of the KV managers, in time or not at all."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from gateway.circuit import Circuit
from gateway.routing_metrics import ANSWERED, SILENT, SKIPPED, RoutingMetrics
from octavo.kv.v1 import common_pb2, kv_manager_pb2_grpc, lookup_pb2
from service.channels import TlsFiles, open_aio_channel

logger = logging.getLogger(__name__)

# An answer takes a few milliseconds. Many times that is still less than computing what would have been found.
ANSWER_SECONDS = 0.25


class PoolView(NamedTuple):
    """One pool as its manager sees it.

    Attributes:
        cached_tokens: tokens of the prompt that need no computing there.
        running_sequences: samples that hold blocks, whoever asked for them.
        free_blocks: blocks that hold nothing, not even what may be found again.
    """

    cached_tokens: int
    running_sequences: int
    free_blocks: int


class PrefixLookup:
    """Asks all managers at once. One that does not answer is left out for a while, as its pools are.

    Pools are told apart by name, so the pools of all managers given here need names of their own; of a name that two
    of them know, the smaller match counts.

    Args:
        addresses: the managers, host:port.
        tls: the way to them.
        answer_seconds: how long a request waits for them.
        metrics: told of each question.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tls: TlsFiles | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        metrics: RoutingMetrics | None = None,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._managers = [_Manager(address, tls, metrics) for address in addresses]

    async def views(self, token_bytes: bytes, root: common_pb2.PrefixRoot) -> Mapping[str, PoolView]:
        """The pools by name, as far as their managers answer in time.

        Args:
            token_bytes: the prompt, u32 little-endian; at least one token.
            root: the prefix root that the request will have.
        """
        request = lookup_pb2.MatchPrefixRequest(token_ids=token_bytes, root=root)
        answers = await asyncio.gather(*(manager.match(request, self._answer_seconds) for manager in self._managers))
        views: dict[str, PoolView] = {}
        for match in (match for answer in answers for match in answer):
            view = PoolView(match.cached_tokens, match.stats.running_sequences, match.stats.free_blocks)
            known = views.setdefault(match.header.pool, view)
            if view.cached_tokens < known.cached_tokens:
                views[match.header.pool] = view
        return views

    async def close(self) -> None:
        """Let go of the connections."""
        for manager in self._managers:
            await manager.close()


class _Manager:
    """One KV manager."""

    def __init__(self, address: str, tls: TlsFiles | None, metrics: RoutingMetrics | None) -> None:
        self._address = address
        self._metrics = metrics or RoutingMetrics(CollectorRegistry())
        self._channel = open_aio_channel(address, tls)
        self._stub = kv_manager_pb2_grpc.KvManagerServiceStub(self._channel)
        self._circuit = Circuit()
        self._silent = False

    async def match(self, request: lookup_pb2.MatchPrefixRequest, seconds: float) -> Sequence[lookup_pb2.PoolMatch]:
        """Its pools, none when it does not answer."""
        began = time.monotonic()
        if not self._circuit.takes_calls(began):
            self._metrics.looked_up(SKIPPED)
            return ()
        self._circuit.begin(began)
        try:
            answer = await self._stub.MatchPrefix(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            now = time.monotonic()
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:  # longer than a manager looks up: nobody's fault
                self._metrics.looked_up(ANSWERED, now - began)
                self._circuit.succeeded()
                return ()
            self._metrics.looked_up(SILENT, now - began)
            self._circuit.failed(now)
            self._note(error)
            return ()
        self._metrics.looked_up(ANSWERED, time.monotonic() - began)
        self._circuit.succeeded()
        self._note(None)
        return answer.matches

    async def close(self) -> None:
        await self._channel.close()

    def _note(self, error: grpc.aio.AioRpcError | None) -> None:
        """One line when it falls silent, one when it answers again."""
        if (error is not None) is self._silent:
            return
        self._silent = error is not None
        if error is None:
            logger.info("KV manager %s answers again", self._address)
        else:
            logger.warning(
                "KV manager %s does not say what is cached (%s): routing by load", self._address, error.code().name
            )
