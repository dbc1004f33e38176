"""Prometheus metrics of the gateway, and the page that shows them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.streams import Piece
from service.errors import ServiceError

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
NEXT_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)


class Metrics:
    """The gateway's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._calls = Counter(
            "octavo_gateway_calls", "calls that ended, by status", ["method", "code"], registry=registry
        )
        self._running = Gauge("octavo_gateway_running_calls", "calls under way", ["method"], registry=registry)
        self._prompt = Counter("octavo_gateway_prompt_tokens", "tokens of finished prompts", registry=registry)
        self._cached = Counter("octavo_gateway_cached_tokens", "of them, found in the prefix cache", registry=registry)
        self._generated = Counter("octavo_gateway_generated_tokens", "tokens sent to clients", registry=registry)
        self._first = Histogram(
            "octavo_gateway_first_token_seconds",
            "from a request's arrival to its first token",
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._next = Histogram(
            "octavo_gateway_next_token_seconds",
            "between two messages with tokens of one answer",
            buckets=NEXT_TOKEN_BUCKETS,
            registry=registry,
        )
        self._ready = Gauge("octavo_gateway_ready", "1 while some worker can be used", registry=registry)

    def show_readiness(self, ready: Callable[[], bool]) -> None:
        """Read the readiness from ``ready`` whenever the page is asked for."""
        self._ready.set_function(ready)

    @contextlib.contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Count a call, by the status it ends with."""
        code = "OK"
        running = self._running.labels(method)
        running.inc()
        try:
            yield
        except ServiceError as error:
            code = error.code.name
            raise
        except (asyncio.CancelledError, GeneratorExit):
            code = "CANCELLED"
            raise
        except BaseException:
            code = "INTERNAL"
            raise
        finally:
            running.dec()
            self._calls.labels(method, code).inc()

    async def observe(self, pieces: AsyncIterator[Piece], arrived: float) -> AsyncGenerator[Piece, None]:
        """Pass pieces on, timing them; ``arrived`` is the request's ``time.monotonic``."""
        last: dict[int, float] = {}
        counted = False
        async for piece in pieces:
            if piece.token_ids:
                now = time.monotonic()
                if piece.index in last:
                    self._next.observe(now - last[piece.index])
                elif not last:
                    self._first.observe(now - arrived)
                last[piece.index] = now
                self._generated.inc(len(piece.token_ids))
            if piece.finish is not None and not counted:  # a prompt counts once, however many answers it has
                counted = True
                self._prompt.inc(piece.finish.usage.prompt_tokens)
                self._cached.inc(piece.finish.usage.cached_tokens)
            yield piece

    def serve(self, listen: str) -> str:
        """Serve the page on ``host:port`` from a thread that dies with the process; returns the address in use.

        Raises:
            OSError: the address cannot be bound.
        """
        host, _, port = listen.rpartition(":")
        server, _ = prometheus_client.start_http_server(int(port), host.strip("[]"), self.registry)
        return f"{host}:{server.server_port}"
