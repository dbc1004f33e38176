"""The engine: one thread that owns the device, the scheduler and the way to the manager.

Each turn of the loop, with step k launched and step k+1 to come (design 4, rule 7):

    take arrivals and aborts -> plan k+1, send it -> run step k, emit its tokens -> receive the answer, launch k+1

so that the manager works while the device does. A plan that asks for nothing is not sent: step k goes on instead.
The rest of the process talks to it through two queues.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from model_worker.engine.batch import Batch, ContractError, Ended, Limits
from model_worker.engine.host_tier import NoHostTier, SwapFailed, Swaps
from model_worker.engine.manager_client import ManagerClient, ManagerLost, ManagerRefused
from model_worker.engine.outcomes import abort_samples
from model_worker.engine.progress import Progress, book_output
from model_worker.engine.rates import MeasuredRates
from model_worker.engine.recovery import in_hand, snapshot
from model_worker.engine.runner import ModelRunner
from model_worker.engine.scheduler import Scheduler
from model_worker.engine.sequence import Sequence
from model_worker.engine.statistics import Statistics
from model_worker.engine.times import EngineTimes
from octavo.kv.v1 import attach_pb2, inspect_pb2, steps_pb2

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
CHUNK_BYTES = 8 * 1024 * 1024
WAITING_POLL_SECONDS = 0.005  # rule 11
FORKS = {inspect_pb2.CAPABILITY_FORK, inspect_pb2.CAPABILITY_GROUPS}
SWAP_FAILURES = 3  # in a row, and the host tier is given up
# Why sequences are left without an end of their own.
STOPPED, BROKEN = "the worker stopped", "the engine failed"


class StepFailed(Exception):
    """A step broke on the device: nothing it may have touched is to be trusted."""


class TakenOver(Exception):
    """Another worker owns the pool now: this one must not fight for it."""


@dataclass(frozen=True, slots=True)
class _Abort:
    sequence: Sequence
    indexes: Collection[int] = ()
    """The samples; none for all."""


@dataclass(slots=True)
class Engine:
    """Runs generations until stopped.

    Args:
        spec: the pool to attach; its ``step`` and ``rates`` are filled in at each attach.
        swaps: runs the swaps that the manager orders.
        emit: takes the progress of a step; called from the engine's thread, must not block.
        on_ready: told True when the pool is attached and False when the manager is lost, with one line; same thread.
        on_failure: told when the thread ends by an error nothing can be done about; same thread.
    """

    spec: attach_pb2.PoolSpec
    limits: Limits
    runner: ModelRunner
    manager: ManagerClient
    emit: Callable[[list[Progress]], None]
    on_ready: Callable[[bool, str], object]
    on_failure: Callable[[], object]
    swaps: Swaps = field(default_factory=NoHostTier)
    statistics: Statistics = field(default_factory=Statistics)
    times: EngineTimes = field(default_factory=EngineTimes)
    forks: bool = field(default=True, init=False)
    """Whether the manager can serve several samples of a prompt."""
    _rates: MeasuredRates = field(default_factory=MeasuredRates)
    _swap_failures: int = 0
    _inbox: "queue.SimpleQueue[Sequence | _Abort | None]" = field(default_factory=queue.SimpleQueue)
    _scheduler: Scheduler = field(init=False)
    _thread: threading.Thread = field(init=False)
    _launched: Batch | None = None
    _lease_seconds: float = 10.0
    _stopping: bool = False
    _attached: bool = False
    _last_loss: str = ""
    _asked: float = 0.0
    _sent: float = 0.0

    def __post_init__(self) -> None:
        self._scheduler = Scheduler(self.limits, self.statistics, time.monotonic)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # --- called from other threads ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; ``on_ready`` says when it has attached its pool."""
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        sequence.timeline.arrived = time.monotonic()
        self._inbox.put(sequence)

    def abort(self, sequence: Sequence) -> None:
        """End a sequence; its end is emitted unless it ended before."""
        self._inbox.put(_Abort(sequence))

    def abort_samples(self, sequence: Sequence, indexes: Collection[int]) -> None:
        """End some samples of a request, at least one; their ends are emitted unless they ended before."""
        self._inbox.put(_Abort(sequence, indexes))

    def stop(self, timeout: float = 10.0) -> None:
        """End the thread, give the pool up and close the way to the manager."""
        self._inbox.put(None)
        self._thread.join(timeout)

    @property
    def waiting_requests(self) -> int:
        """Requests without a table."""
        return len(self._scheduler.queue)

    @property
    def running_requests(self) -> int:
        """Requests with a table, however many samples they have."""
        return len({id(one.group or one) for one in list(self._scheduler.running.values())})

    @property
    def silent_seconds(self) -> float:
        """How long the thread has stood waiting for an answer of the manager's, 0 when it does not."""
        asked = self._asked
        return time.monotonic() - asked if asked else 0.0

    @property
    def epoch(self) -> int:
        """The pool's epoch, 0 before the first attach."""
        return self._scheduler.epoch

    @property
    def step(self) -> int:
        """The last step answered."""
        return self._scheduler.step

    # --- the engine's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._attach()
                    while not self._stopping:
                        self._turn()
                except ManagerLost as error:
                    self._lose(f"lost the KV manager: {error}")
                except ManagerRefused as error:
                    if error.reason == "STALE_EPOCH":
                        raise TakenOver(f"another worker has attached pool {self.spec.pool!r}") from error
                    # A manager that does not know the pool is a new one; any other refusal casts doubt on the books.
                    self._lose(f"the KV manager refused: {error}", keep_tables=error.reason == "POOL_NOT_FOUND")
                except ContractError as error:
                    self._lose(f"the KV manager broke the contract: {error}", keep_tables=False)
                except StepFailed as error:
                    self._lose(str(error), keep_tables=False)
                if not self._step_in_hand():
                    self._take(RETRY_SECONDS)
        except BaseException as error:
            logger.exception("the engine failed")
            self.on_ready(False, f"the engine failed: {error}")
            self.on_failure()
        finally:
            self._leave()

    def _attach(self) -> None:
        capabilities = self.manager.capabilities()
        self.forks = capabilities >= FORKS
        self.spec.step = self._scheduler.step
        if inspect_pb2.CAPABILITY_HOST_TIER not in capabilities or self._swap_failures >= SWAP_FAILURES:
            self.spec.host_blocks = 0
        self._rates.copy = self.swaps.bytes_per_second
        if rates := self._rates.message():
            self.spec.rates.CopyFrom(rates)
        parts = [attach_pb2.AttachRequest(pool=self.spec)]
        if inspect_pb2.CAPABILITY_ADOPTION in capabilities:
            parts += _chunks(snapshot(self._scheduler))
        answer = self.manager.attach(parts)
        if self._scheduler.epoch:
            self.statistics.reattaches += 1
        self._lease_seconds = answer.lease_ms / 1000
        self._scheduler.attach(
            answer,
            reserve=inspect_pb2.CAPABILITY_PREEMPTION not in capabilities,
            room_ahead=inspect_pb2.CAPABILITY_ROOM_AHEAD in capabilities,
        )
        self._attached, self._last_loss = True, ""
        logger.info(
            "pool %s attached: epoch %d, %d blocks, %d sequences adopted",
            self.spec.pool,
            answer.header.epoch,
            answer.stats.num_blocks,
            len(answer.adopted),
        )
        self._turn()  # the pool is this worker's for a lease once a step was answered (design 3.6)
        self.on_ready(True, "attached")

    def _lose(self, message: str, keep_tables: bool = True) -> None:
        """Without a manager: drain what was answered, and keep what the device holds for the next manager to adopt."""
        if self._attached:
            logger.warning("%s; %d sequences hold tables", message, self.running_requests)
            self._attached = False
            self.on_ready(False, message)
        elif message != self._last_loss:
            logger.warning("%s; trying again", message)
            self.on_ready(False, message)
        self._last_loss = message
        self._asked = 0.0
        launched, self._launched = self._launched, None
        if keep_tables and launched is not None:
            keep_tables = self._survives(launched)
        self.swaps.drain()
        if keep_tables:
            self._scheduler.void_plan()
        else:
            self._scheduler.lose_tables()

    def _step_in_hand(self) -> bool:
        """One step on slots granted already; False when there are none left."""
        self._take(0.0)
        batch = in_hand(self._scheduler)
        if batch.rows and not self._stopping and not self._survives(batch):
            self._scheduler.lose_tables()
        return bool(batch.rows)

    def _survives(self, batch: Batch) -> bool:
        """Run a step while there is no manager; False when it failed, and with it all that the device holds."""
        try:
            self._execute(batch)
        except StepFailed as error:
            logger.warning("%s", error)
            return False
        return True

    def _leave(self) -> None:
        scheduler = self._scheduler
        live = [*scheduler.queue, *scheduler.asking.values(), *scheduler.running.values()]
        ended = [Ended(one, STOPPED if self._stopping else BROKEN) for one in live]
        self.emit([Progress(one.sequence, (), one, self._scheduler.step) for one in ended])
        try:
            if self._attached:
                self.manager.detach(attach_pb2.DetachRequest(pool=self.spec.pool, epoch=self._scheduler.epoch))
        except (ManagerLost, ManagerRefused) as error:
            logger.info("the pool was not given up: %s", error)
        self.manager.close()

    def _turn(self) -> None:
        self._take(0.0 if self._launched is not None or self._scheduler.busy else self._idle_seconds())
        if self._stopping:
            return
        request = self._plan()
        if request is None:
            assert self._launched is not None
            self._execute(self._launched)
            batch = self._scheduler.go_on()
            self._launched = None if batch.empty else batch
            return
        self.manager.send(request)
        self._sent = time.monotonic()
        if self._launched is not None:
            self._execute(self._launched)
            self._launched = None
        self._asked = began = time.monotonic()
        response = self.manager.receive()
        self._asked = 0.0
        waited = time.monotonic() - began
        self.statistics.manager_wait_seconds += waited
        self.times.manager_wait.observe(waited)
        batch, ended = self._scheduler.launch(response)
        if ended:
            self.emit([Progress(one.sequence, (), one, batch.step) for one in ended])
        if batch.empty:
            self._scheduler.finish(batch, {}, self.swaps.completed(batch.step))
        else:
            self._launched = batch

    def _plan(self) -> steps_pb2.StepRequest | None:
        """The next step's request; None when a step runs already and the manager can do without a word (rule 7)."""
        rates = self._rates.news()
        may_be_quiet = self._launched is not None and time.monotonic() < self._sent + self._lease_seconds / 3
        request = self._scheduler.plan_unless_quiet(never=rates is not None or not may_be_quiet)
        if request is not None and rates is not None:
            request.rates.CopyFrom(rates)
        return request

    def _idle_seconds(self) -> float:
        """How long the manager may go without a step (rule 11)."""
        return WAITING_POLL_SECONDS if self._scheduler.queue else self._lease_seconds / 3

    def _execute(self, batch: Batch) -> None:
        began = time.monotonic()
        try:
            self.swaps.run(batch)
            output = self.runner.run(batch)
        except SwapFailed as error:
            self.statistics.swap_failures += 1
            self._swap_failures += 1
            raise StepFailed(f"step {batch.step}: blocks did not move ({error}), everybody is recomputed") from error
        except Exception as error:
            failed = {"step": batch.step, "request_ids": sorted({row.sequence.request_id for row in batch.rows})}
            logger.exception("step %d failed", batch.step, extra=failed)
            ended = self._scheduler.fail(batch, f"step {batch.step} failed: {error}")
            self.emit([Progress(one.sequence, (), one, batch.step) for one in ended])
            raise StepFailed(f"step {batch.step} failed on the device, attaching a fresh pool") from error
        if batch.swaps_in:  # what was stored came back
            self._swap_failures = 0
        seconds = time.monotonic() - began
        self.statistics.step_seconds += seconds
        self.times.step.observe(seconds)
        self._rates.see_step(batch, seconds)
        self._rates.copy = self.swaps.bytes_per_second
        if progress := book_output(self._scheduler, batch, output, self.swaps.completed(batch.step)):
            self.emit(progress)

    def _take(self, wait_seconds: float) -> None:
        """Take all arrivals and aborts, waiting for the first one if there is nothing else to do."""
        ended = []
        try:
            item = self._inbox.get(timeout=wait_seconds) if wait_seconds > 0 else self._inbox.get_nowait()
            while True:
                if item is None:
                    self._stopping = True
                elif isinstance(item, Sequence):
                    self._scheduler.add(item)
                else:
                    aborted = _end(self._scheduler, item)
                    ended += [Progress(one.sequence, (), one, self._scheduler.step) for one in aborted]
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass
        if ended:
            self.emit(ended)


def _end(scheduler: Scheduler, item: _Abort) -> list[Ended]:
    if item.indexes:
        return abort_samples(scheduler, item.sequence, item.indexes)
    return scheduler.abort(item.sequence)


def _chunks(sequences: Iterable[attach_pb2.LiveSequence]) -> Iterator[attach_pb2.AttachRequest]:
    """The snapshot in messages well below the message limit."""
    chunk = attach_pb2.AttachRequest()
    size = 0
    for sequence in sequences:
        if size + sequence.ByteSize() > CHUNK_BYTES and size:
            yield chunk
            chunk, size = attach_pb2.AttachRequest(), 0
        chunk.sequences.sequences.append(sequence)
        size += sequence.ByteSize()
    if size:
        yield chunk
