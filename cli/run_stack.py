"""Starts the processes of a local Octavo in order, says how to call them, and ends them together."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cli import stack
from cli.failures import CliError
from cli.log_lines import LogLine, LogPrinter
from cli.supervisor import ChildDied, Interrupted, Supervisor
from service.process import announce_ready

# Off a terminal nothing spins; a line this often says that a wait goes on.
QUIET_TICK_SECONDS = 5


def run_stack(
    options: stack.StackOptions, endpoints: Iterable[stack.Endpoint], grace_seconds: float, *, in_process: bool
) -> None:
    """Start all, listening on ``endpoints``, say how to call, and wait for Ctrl-C or the first death.

    Raises:
        CliError: a port is taken, or a child died; the message ends with the child's last lines.
        SystemExit: 130 after a second Ctrl-C.
    """
    addresses = {endpoint: stack.listen_address(endpoint, options) for endpoint in endpoints}
    stack.check_free(addresses)
    console = Console(stderr=True, highlight=False)
    printer = LogPrinter(console)
    supervisor = Supervisor(printer, grace_seconds)
    try:
        with supervisor:
            started = _start(supervisor, options, addresses, Progress(console, printer.progress), in_process=in_process)
            _announce(console, started)
            supervisor.wait()
    except Interrupted:
        console.print("[red]killed[/red]" if supervisor.killed else "everything is drained", style="dim")
    except ChildDied as death:
        lines = [f"\n  {LogLine.parse(line).render(death.name).plain}" for line in death.last_lines]
        raise CliError(f"{death}; its last lines:{''.join(lines) or ' none'}") from death
    if supervisor.killed:
        raise SystemExit(130)


@dataclass(frozen=True, slots=True)
class Started:
    """Addresses in use, as the ready lines told them; ``tls`` is the gateway's."""

    gateway: str
    tls: bool
    http: str | None
    inspector: str | None
    worker: str
    manager: str
    model: str


def _start(
    supervisor: Supervisor,
    options: stack.StackOptions,
    addresses: dict[stack.Endpoint, str],
    progress: "Progress",
    *,
    in_process: bool,
) -> Started:
    """Manager, worker, gateway: each is told of the one before. Returns once the gateway's health is SERVING."""
    if in_process:
        supervisor.start("model_worker", stack.embedded_command(options, addresses))
    else:
        supervisor.start("kv_manager", stack.manager_command(options, addresses))
    with progress.shown("the KV manager starts") as tick:
        manager = str(supervisor.wait_ready("kv_manager", tick)["grpc"])
    if not in_process:
        supervisor.start("model_worker", stack.worker_command(options, addresses, manager))
    # With a known address the gateway starts while the model loads, and answers callers that it is not ready yet.
    early = stack.is_fixed(addresses[stack.WORKER])
    if early:
        supervisor.start("gateway", stack.gateway_command(options, addresses, [addresses[stack.WORKER]], manager))
    with progress.shown("the model loads") as tick:
        worker_ready = supervisor.wait_ready("model_worker", tick)
    worker = str(worker_ready["grpc"])
    if not early:
        supervisor.start("gateway", stack.gateway_command(options, addresses, [worker], manager))
    with progress.shown("the gateway connects") as tick:
        # It says so once its health is SERVING. To ask it here would take what its callers have: TLS, a certificate.
        ready = supervisor.wait_ready("gateway", tick)
    return Started(
        str(ready["grpc"]),
        bool(ready.get("tls")),
        ready.get("http"),
        ready.get("inspector"),
        worker,
        manager,
        str(worker_ready.get("model", "")),
    )


def _announce(console: Console, started: Started) -> None:
    """How to call it: for people on a terminal, one JSON line on stdout for programs otherwise."""
    if not sys.stdout.isatty():
        announce_ready(
            "octavo",
            started.gateway,
            http=started.http,
            worker=started.worker,
            manager=started.manager,
            model=started.model,
        )
    host, _, port = started.gateway.rpartition(":")
    address = "" if (host, port) == ("127.0.0.1", str(stack.GATEWAY.default_port)) else f" --address {started.gateway}"
    manager = "" if started.manager.endswith(f":{stack.MANAGER.default_port}") else f" --address {started.manager}"
    command = _own_command()
    # Greedy: at temperature 1 a small model rambles.
    request = json.dumps({"prompt": "Once upon a time", "options": {"max_tokens": 32, "temperature": 0}})
    scheme, plain = ("https", "") if started.tls else ("http", " -plaintext")
    http = f"\n  OpenAI clients: base_url {scheme}://{started.http}/v1, any api_key" if started.http else ""
    page = f"\n  the pages as they change: {scheme}://{started.inspector}/inspect" if started.inspector else ""
    console.print(
        f"""
[bold green]Octavo serves {escape(started.model)} at {started.gateway}[/bold green]

  {command} generate "Once upon a time" --temperature 0{address}
  {command} chat --temperature 0{address}
  {command} inspect{manager}
  grpcurl{plain} -d '{escape(request)}' {started.gateway} octavo.gateway.v1.GatewayService/Generate{http}{page}

Ctrl-C drains everything, a second one kills.
""",
        soft_wrap=True,
    )


def _own_command() -> str:
    """How this very command is typed: by name where the shell finds it, else by the path it was started with."""
    started_as = Path(sys.argv[0])
    return "octavo" if shutil.which("octavo") or started_as.name != "octavo" else os.path.relpath(started_as)


@dataclass(frozen=True, slots=True)
class Progress:
    """Says that a wait goes on: a spinner on a terminal, a line now and then elsewhere.

    ``told`` holds how far each child says it is, from 0 to 1.
    """

    console: Console
    told: Mapping[str, float]

    @contextlib.contextmanager
    def shown(self, title: str) -> Iterator[Callable[[float], None]]:
        """Yields the tick to call with the seconds gone by."""
        if self.console.is_terminal:
            with self.console.status(title) as status:
                yield lambda elapsed: status.update(self._line(title, elapsed))
            return
        printed = 0

        def tick(elapsed: float) -> None:
            nonlocal printed
            if elapsed // QUIET_TICK_SECONDS > printed:
                printed = int(elapsed // QUIET_TICK_SECONDS)
                self.console.print(self._line(title, elapsed), soft_wrap=True)

        yield tick

    def _line(self, title: str, elapsed: float) -> str:
        shares = [f", {share:.0%}" for share in self.told.values() if share < 1]
        return f"{title}: {elapsed:.0f} s{''.join(shares)}"
