"""The supervisor with small real processes: each prints its ready line, then does one thing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from cli.supervisor import LAST_LINES, ChildDied, Interrupted, Supervisor

pytestmark = pytest.mark.e2e

READY = (
    "import json, signal, sys; print(json.dumps({'event': 'ready', 'service': sys.argv[1], 'grpc': 'h:1'}), flush=True)"
)
# Ends on SIGTERM, and says so.
SERVE = f"{READY}; signal.sigwait([signal.SIGTERM]); print('drained', flush=True)"
BLOCKED = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "


def script(body: str, name: str) -> list[str]:
    return ["-c", BLOCKED + body, name]


def run(supervisor: Supervisor, name: str, arguments: list[str]) -> None:
    """Start one child and wait for what happens."""
    with supervisor:
        supervisor.start(name, arguments)
        supervisor.wait()


class Lines(list[tuple[str, str]]):
    def __call__(self, child: str, line: str) -> None:
        self.append((child, line))


def test_children_drain_in_reverse_order_of_their_start() -> None:
    lines = Lines()
    with Supervisor(lines, grace_seconds=60) as supervisor:
        for name in ("manager", "worker", "gateway"):
            supervisor.start(name, script(SERVE, name))
            assert supervisor.wait_ready(name) == {"event": "ready", "service": name, "grpc": "h:1"}
    assert lines == [("gateway", "drained"), ("worker", "drained"), ("manager", "drained")]


def test_first_death_ends_the_others_and_keeps_its_last_lines() -> None:
    lines = Lines()
    # 30 lines are printed, the last 20 are kept: numbers 10 to 29.
    dies = f"{READY}; print(*range(30), sep='\\n', file=sys.stderr); sys.exit(3)"
    supervisor = Supervisor(lines, grace_seconds=60)

    def serve() -> None:
        with supervisor:
            supervisor.start("other", script(SERVE, "other"))
            supervisor.wait_ready("other")
            supervisor.start("dies", script(dies, "dies"))
            supervisor.wait()

    with pytest.raises(ChildDied, match="dies ended with status 3") as caught:
        serve()
    assert caught.value.last_lines == tuple(str(number) for number in range(30 - LAST_LINES, 30))
    assert ("other", "drained") in lines


def test_death_by_a_signal_is_named() -> None:
    victim = script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "victim")
    with pytest.raises(ChildDied, match="victim was killed by SIGKILL"):
        run(Supervisor(Lines(), grace_seconds=60), "victim", victim)


def test_a_child_that_dies_before_it_is_ready_is_noticed_while_waiting() -> None:
    def serve() -> None:
        with Supervisor(Lines(), grace_seconds=60) as supervisor:
            supervisor.start("broken", ["-c", "raise SystemExit('cannot listen')"])
            supervisor.wait_ready("broken")

    with pytest.raises(ChildDied, match="broken ended with status 1") as caught:
        serve()
    assert caught.value.last_lines == ("cannot listen",)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_the_wait_and_everything_is_drained(number: signal.Signals) -> None:
    lines = Lines()
    supervisor = Supervisor(lines, grace_seconds=60)

    def serve() -> None:
        with supervisor:
            supervisor.start("child", script(SERVE, "child"))
            supervisor.wait_ready("child")
            os.kill(os.getpid(), number)
            supervisor.wait()

    with pytest.raises(Interrupted, match=number.name):
        serve()
    assert lines == [("child", "drained")]
    assert not supervisor.killed


def test_the_old_signal_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Supervisor(Lines(), grace_seconds=60):
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_signal_kills_a_child_that_does_not_drain() -> None:
    # The child ignores SIGTERM; it tells when it got it, which is when the second Ctrl-C comes.
    stubborn = f"{READY}; signal.sigwait([signal.SIGTERM]); print('no', flush=True); signal.pause()"
    supervisor = Supervisor(lambda child, line: os.kill(os.getpid(), signal.SIGINT), grace_seconds=600)
    begin = time.monotonic()
    with supervisor:
        supervisor.start("stubborn", script(stubborn, "stubborn"))
        supervisor.wait_ready("stubborn")
    assert supervisor.killed
    assert time.monotonic() - begin < 60  # far below the grace of 600 s


def test_signals_that_hit_another_thread_count() -> None:
    # Blocked in the main thread and in no other, both signals are handed to some other thread.
    lines = Lines()
    hit = threading.Event()
    threading.Thread(target=hit.wait, daemon=True).start()
    supervisor = Supervisor(lines, grace_seconds=600)

    def serve() -> None:
        with supervisor:
            supervisor.start("stubborn", script(f"{READY}; signal.pause()", "stubborn"))
            supervisor.wait_ready("stubborn")
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            supervisor.wait()

    try:
        with pytest.raises(Interrupted):
            serve()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
        hit.set()
    assert supervisor.killed


def test_a_child_that_outlives_its_grace_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.supervisor.EXIT_MARGIN_SECONDS", 0.1)
    lines = Lines()
    with Supervisor(lines, grace_seconds=0.1) as supervisor:
        supervisor.start("stubborn", script(f"{READY}; signal.pause()", "stubborn"))
        supervisor.wait_ready("stubborn")
    assert lines == [("stubborn", "still runs after its grace of 0.1 s: killed")]


def test_what_a_child_leaves_behind_ends_with_it() -> None:
    # The grandchild inherits the pipes: were it left alive, the end of the child would never be seen.
    parent = (
        "import subprocess, sys; "
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']); "
        "print(grandchild.pid, flush=True); sys.exit(7)"
    )
    lines = Lines()
    with pytest.raises(ChildDied, match="status 7"):
        run(Supervisor(lines, grace_seconds=60), "parent", ["-c", parent])
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(lines[0][1])).wait(timeout=120)  # raises TimeoutExpired if it lives on


def test_children_follow_a_parent_that_was_killed(tmp_path: Path) -> None:
    child = "from service.process import follow_parent; follow_parent(); import signal; signal.pause()"
    parent = (
        "from cli.supervisor import Supervisor\n"
        "with Supervisor(lambda child, line: None, 60) as supervisor:\n"
        f"    supervisor.start('child', ['-c', {READY + '; ' + child!r}, 'child'])\n"
        "    supervisor.wait_ready('child')\n"
        "    print(supervisor._children[0].process.pid, flush=True)\n"
        "    supervisor.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        orphan = psutil.Process(pid)
        process.kill()
    orphan.wait(timeout=120)  # raises TimeoutExpired if it lives on


def test_only_ready_lines_are_taken_for_ready_lines() -> None:
    lines = Lines()
    noise = ["{", "[1]", json.dumps({"event": "other"}), '{"event": "ready"']
    body = f"print({chr(10).join(noise)!r}, flush=True); {SERVE}"
    with Supervisor(lines, grace_seconds=60) as supervisor:
        supervisor.start("child", script(body, "child"))
        supervisor.wait_ready("child")
    assert [line for _, line in lines] == [*noise, "drained"]
