"""One model worker: its connection, its health, its model, and the calls that run on it.

A worker is looked at every second: ``grpc.health.v1`` for ``octavo.worker.v1.WorkerService``, then its model. Two looks
without an answer within 2 s each make it unusable, so a frozen worker is noticed after at most 1 + 2 + 2 seconds, while
a single late answer of a busy one changes nothing. A worker whose health is good and whose calls fail all the same is
left out by its circuit.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.circuit import Circuit
from gateway.models import ModelCache, ServedModel
from gateway.text.tokenizer import TokenizerError
from gateway.worker_call import WorkerCall
from gateway.workload import Booking, Workload
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from service import traced_calls, tracing
from service.channels import TlsFiles, open_aio_channel

logger = logging.getLogger(__name__)

WORKER_SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
GENERATE = f"{WORKER_SERVICE}/Generate"

LOOK_EVERY_SECONDS = 1.0
ANSWER_SECONDS = 2.0
MISSES_ALLOWED = 1
# Errors travel in HTTP/2 trailers, of which clients accept 8 KiB for all workers together.
MAX_STATE_CHARACTERS = 200
TOKENIZER_SECONDS = 60.0
# The largest published tokenizers take about 40 MB; more than this is no tokenizer.
MAX_TOKENIZER_BYTES = 256 << 20
# Other errors are about the request, or about its caller's patience.
_ITS_FAULT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DATA_LOSS,
    }
)

# Without this, gRPC widens a stream's receive window to megabytes, all of which a reader that stalls would fill here.
# The 64 KiB that remain are hundreds of tokens.
BOUNDED_WINDOW = ("grpc.http2.bdp_probe", 0)

Changed = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a worker cannot be used.

    Attributes:
        reason: one line for people.
        silent: it did not answer in time, which a busy worker may do once.
        misconfigured: waiting will not help; somebody has to change a setting.
    """

    reason: str
    silent: bool = False
    misconfigured: bool = False


class Worker:
    """A worker at an address. Usable while ``trouble`` is None.

    Args:
        address: host:port.
        models: shared by all workers.
        tls: how to know it and be known to it; None for plain text.
        name: what its certificate has to be for; empty for the host of the address.

    Attributes:
        address: as given.
        model: what it serves, or last served; None until it told.
        trouble: why it cannot be used now.
        worker_id: the identity of its process, empty until it told.
        pool: its pool's name at its KV manager, empty until it told.
        max_sequences: how many samples it runs at once, 0 until it told.
        workload: what it was given from here.
        circuit: how its calls went.
    """

    def __init__(self, address: str, models: ModelCache, tls: TlsFiles | None = None, name: str = "") -> None:
        self.address = address
        self.model: ServedModel | None = None
        self.trouble: Trouble | None = Trouble("it was not reached yet")
        self.pool = ""
        self.max_sequences = 0
        self.workload = Workload()
        self.circuit = Circuit()
        self.worker_id = ""
        self._models = models
        self._channel = open_aio_channel(address, tls, [BOUNDED_WINDOW], verified_as=name)
        self._stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._look_now = asyncio.Event()
        self._aborts: set[object] = set()

    async def watch(self, changed: Changed) -> None:
        """Look at the worker until cancelled; ``changed`` is awaited whenever its trouble or model changed."""
        silent_looks = 0
        while True:
            self._look_now.clear()
            trouble, model = await self._look()
            silent_looks = silent_looks + 1 if trouble is not None and trouble.silent else 0
            if not 0 < silent_looks <= MISSES_ALLOWED:
                await self._update(trouble, model, changed)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_SECONDS):
                        await self._look_now.wait()

    def look_now(self) -> None:
        """Have the worker looked at without delay: a call on it has just failed."""
        self._look_now.set()

    @contextlib.asynccontextmanager
    async def generate(self, request: worker_pb2.GenerateRequest, timeout: float | None) -> AsyncIterator[WorkerCall]:
        """Run a request; leaving the block cancels what still runs.

        Args:
            request: the request.
            timeout: seconds until the worker gives up, None for no limit.
        """
        samples = max(1, request.n, request.best_of, request.beam_search.width)
        span = tracing.current().child(GENERATE, "CLIENT")
        traced_calls.describe(span, GENERATE)
        span.set("server.address", self.address)
        call = self._stub.Generate(request, timeout=timeout, metadata=span.headers())
        booking = self.workload.begin(request.request_id, len(request.token_ids), samples, request.stop.max_tokens)
        self.circuit.begin(time.monotonic())
        try:
            yield WorkerCall(call, lambda: self._answered(booking))
        except grpc.aio.AioRpcError as error:
            span.fail(error.code().name)
            if error.code() in _ITS_FAULT:
                self.circuit.failed(time.monotonic())
            raise
        else:
            self.circuit.succeeded()
        finally:
            self.workload.end(booking)
            call.cancel()
            span.end()

    def _answered(self, booking: Booking) -> None:
        self.workload.started(booking)
        self.circuit.answered()

    def abort_sample(self, request_id: str, index: int) -> None:
        """Have the worker end one sample of a request whose others go on.

        Nobody waits for it: where it fails, all it costs are tokens that nobody reads.
        """
        request = worker_pb2.AbortSamplesRequest(request_id=request_id, indexes=[index])
        call = self._stub.AbortSamples(request, timeout=ANSWER_SECONDS)
        self._aborts.add(call)  # a call that nobody holds is cancelled
        call.add_done_callback(self._aborts.discard)

    async def close(self) -> None:
        await self._channel.close()

    async def _update(self, trouble: Trouble | None, model: ServedModel | None, changed: Changed) -> None:
        before = (self.trouble, self.model)
        self.trouble, self.model = trouble, model or self.model
        if (self.trouble, self.model) == before:
            return
        if trouble is None:
            logger.info("worker %s is ready", self.address, extra={"model": self.model and self.model.name})
        else:
            was_usable = before[0] is None
            # One that is starting is no reason to worry.
            level = logging.ERROR if trouble.misconfigured else logging.WARNING if was_usable else logging.INFO
            logger.log(level, "worker %s cannot be used: %s", self.address, trouble.reason)
        await changed()

    async def _look(self) -> tuple[Trouble | None, ServedModel | None]:
        try:
            request = health_pb2.HealthCheckRequest(service=WORKER_SERVICE)
            health = await self._health.Check(request, timeout=ANSWER_SECONDS)
            if health.status != health_pb2.HealthCheckResponse.SERVING:
                return Trouble(await self._ask_state()), None
            # Asked each time, since a worker may be replaced by another one between two looks.
            description = await self._stub.GetModel(worker_pb2.GetModelRequest(), timeout=ANSWER_SECONDS)
            self._know(description)
            return None, await self._models.get(description, self._fetch_tokenizer)
        except grpc.aio.AioRpcError as error:
            return _trouble_of(error), None
        except TokenizerError as error:
            return Trouble(f"its tokenizer cannot be used: {error}", misconfigured=True), None
        except Exception as error:
            logger.exception("looking at worker %s failed", self.address)
            return Trouble(f"looking at it failed: {type(error).__name__}"), None

    def _know(self, description: worker_pb2.GetModelResponse) -> None:
        self.pool = description.pool
        self.max_sequences = description.max_sequences
        if description.header.worker_id != self.worker_id:  # another process: what its predecessor did is no sign
            self.worker_id = description.header.worker_id
            self.circuit = Circuit()

    async def _ask_state(self) -> str:
        """Why the worker is not ready, in its own words."""
        try:
            stats = await self._stub.GetStats(worker_pb2.GetStatsRequest(), timeout=ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            # A worker that leaves refuses the call and says so; of any other failure nothing is known.
            refused = error.code() is grpc.StatusCode.UNAVAILABLE
            said = error.details() or "" if refused else ""
        else:
            said = stats.state
        return " ".join(said.split())[:MAX_STATE_CHARACTERS] or "it is not ready and does not say why"

    async def _fetch_tokenizer(self) -> dict[str, bytes]:
        files: dict[str, bytearray] = {}
        total = 0
        call = self._stub.GetTokenizer(worker_pb2.GetTokenizerRequest(), timeout=TOKENIZER_SECONDS)
        async for piece in call:
            total += len(piece.data)
            if total > MAX_TOKENIZER_BYTES:
                call.cancel()
                raise TokenizerError(f"it is larger than {MAX_TOKENIZER_BYTES} bytes")
            files.setdefault(piece.name, bytearray()).extend(piece.data)
        return {name: bytes(content) for name, content in files.items()}


def _trouble_of(error: grpc.aio.AioRpcError) -> Trouble:
    code, details = error.code(), error.details() or ""
    cause = details.rpartition("last error: ")[2]
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Trouble("it does not answer", silent=True)
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
        return Trouble(f"a gRPC server answers there, but not one of {WORKER_SERVICE}", misconfigured=True)
    if "SETTINGS frame as the first frame" in details or "http1" in details.lower():
        return Trouble(
            f"what listens there does not speak gRPC; expected is {WORKER_SERVICE} ({cause})", misconfigured=True
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return Trouble(cause)
    return Trouble(f"{code.name}: {cause}")
