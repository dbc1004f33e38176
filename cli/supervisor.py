"""Runs child processes as one: reads their ready lines and logs, drains them in order, notices the first death.

    with Supervisor(on_line=print, grace_seconds=10) as supervisor:
        supervisor.start("kv_manager", ["-m", "kv_manager"])
        ready = supervisor.wait_ready("kv_manager")     # the service's name in the ready line
        supervisor.wait()          # raises Interrupted on Ctrl-C, ChildDied when a child ends
    # here every child has been drained, in the reverse order of their start

Threads only read pipes and wait for exits; everything they see becomes an event in one queue, and everything that acts
on events runs in the thread that owns the supervisor, which must be the main thread: it owns the signals, and a child's
parent-death signal follows the thread that started it.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Self

from service.process import PARENT_VARIABLE

LAST_LINES = 20
# A drained child needs a moment beyond its grace to close what it owns.
EXIT_MARGIN_SECONDS = 5.0
TICK_SECONDS = 1.0


class ChildDied(Exception):
    """A child ended by itself."""

    def __init__(self, name: str, code: int, last_lines: Sequence[str]) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        super().__init__(f"{name} {how}")
        self.name = name
        self.code = code
        self.last_lines = tuple(last_lines)


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived."""


@dataclass(frozen=True, slots=True)
class _Line:
    child: "_Child"
    text: str


@dataclass(frozen=True, slots=True)
class _Ready:
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Exited:
    child: "_Child"


@dataclass(frozen=True, slots=True)
class _Signal:
    number: int


_Event = _Line | _Ready | _Exited | _Signal


@dataclass(slots=True, eq=False)
class _Child:
    name: str
    process: subprocess.Popen[str]
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    code: int | None = None
    exit_seen: bool = False
    # Held while the process is reaped, so that nobody signals a group whose id is free again.
    reaping: threading.Lock = field(default_factory=threading.Lock)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        """End the child and whatever it started."""
        with self.reaping:
            if self.code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)


class Supervisor:
    """Children of this interpreter, each in a process group of its own, so that Ctrl-C reaches only the parent.

    Leaving the ``with`` block drains what still runs: SIGTERM to the child started last, wait for its exit, then the
    one before. A child that outlives its grace is killed; another Ctrl-C kills all.

    Args:
        on_line: called with (child's name, line) for every line a child prints, the ready line excepted.
        grace_seconds: what a child is given to finish its work when it is drained.
    """

    def __init__(self, on_line: Callable[[str, str], None], grace_seconds: float) -> None:
        self._on_line = on_line
        self._grace_seconds = grace_seconds
        self._children: list[_Child] = []
        self._ready: dict[str, dict[str, Any]] = {}
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._old_handlers: dict[int, Any] = {}
        self._wakeup = -1
        self._old_wakeup = -1
        self.killed = False

    def __enter__(self) -> Self:
        # The kernel may hand a signal to any thread, and Python's own handlers run only once the main thread wakes up:
        # the byte written to this pipe becomes an event whichever thread was hit.
        reading, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        threading.Thread(target=self._read_signals, args=(reading,), daemon=True).start()
        self._old_wakeup = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old_handlers[number] = signal.signal(number, lambda number, frame: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._drain()
        finally:
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._old_wakeup)
            os.close(self._wakeup)

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start ``sys.executable`` with ``arguments``."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            process_group=0,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"},
        )
        child = _Child(name, process)
        self._children.append(child)
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=(child, process.stdout, True), daemon=True),
            threading.Thread(target=self._read, args=(child, process.stderr, False), daemon=True),
        ]
        for reader in readers:
            reader.start()
        threading.Thread(target=self._watch, args=(child, readers), daemon=True).start()

    def wait_ready(self, service: str, on_tick: Callable[[float], None] = lambda elapsed: None) -> dict[str, Any]:
        """The fields of the service's ready line; ``on_tick`` hears about once a second how many seconds went by.

        A child may be several services and print a ready line for each.

        Raises:
            ChildDied: any child ended first.
            Interrupted: SIGINT or SIGTERM arrived first.
        """
        begin = time.monotonic()
        while service not in self._ready:
            self._handle(self._next(TICK_SECONDS))
            on_tick(time.monotonic() - begin)
        return self._ready[service]

    def wait(self) -> None:
        """Pass lines on until something happens.

        Raises:
            ChildDied: a child ended, with whatever status.
            Interrupted: SIGINT or SIGTERM arrived.
        """
        while True:
            self._handle(self._next(None))

    def _handle(self, event: _Event | None) -> None:
        match event:
            case _Exited(child):
                assert child.code is not None
                raise ChildDied(child.name, child.code, child.last_lines)
            case _Signal(number):
                raise Interrupted(signal.Signals(number).name)
            case _:
                pass

    def _next(self, timeout: float | None) -> _Event | None:
        """The next event, None after ``timeout`` seconds. Lines and ready lines are dealt with here."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        match event:
            case _Line(child, text):
                child.last_lines.append(text)
                self._on_line(child.name, text)
            case _Ready(fields):
                self._ready[str(fields.get("service"))] = fields
            case _Exited(child):
                child.exit_seen = True
            case _:
                pass
        return event

    def _drain(self) -> None:
        for child in reversed(self._children):
            if not child.exit_seen:
                child.terminate()
            if not self._await_exit(child, self._grace_seconds + EXIT_MARGIN_SECONDS):
                self._on_line(child.name, f"still runs after its grace of {self._grace_seconds:g} s: killed")
                child.kill()
                self._await_exit(child, None)

    def _await_exit(self, child: _Child, timeout: float | None) -> bool:
        """Whether the child is gone. A signal meanwhile kills every child."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not child.exit_seen:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if isinstance(self._next(left), _Signal):
                self.killed = True
                for each in self._children:
                    each.kill()
        return True

    def _read_signals(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while numbers := pipe.read(64):
                for number in filter(self._old_handlers.__contains__, numbers):
                    self._events.put(_Signal(number))

    def _read(self, child: _Child, pipe: IO[str], may_be_ready: bool) -> None:
        for raw in pipe:
            text = raw.rstrip("\n")
            fields = _ready_fields(text) if may_be_ready else None
            self._events.put(_Line(child, text) if fields is None else _Ready(fields))
        pipe.close()

    def _watch(self, child: _Child, readers: Sequence[threading.Thread]) -> None:
        pid = child.process.pid
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with child.reaping:
            # Not reaped yet, the child keeps its group's id from reuse; what it left behind holds our pipes open.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            child.code = child.process.wait()
        for reader in readers:
            reader.join()
        self._events.put(_Exited(child))


def _ready_fields(text: str) -> dict[str, Any] | None:
    """The fields of a ready line, None for any other line."""
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and fields.get("event") == "ready" else None
