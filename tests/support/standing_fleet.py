"""Services at addresses they keep, whichever processes serve there: for tests that kill, freeze and replace them."""

import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from older_build import Build
from processes import ServiceProcess
from unclaimed_port import unclaimed_port

# Pools at one manager, and with them workers.
POOLS = ("a", "b")


class Post:
    """One service at one address.

    Attributes:
        process: the one that serves there now, or did last.
        address: host:port.
    """

    def __init__(self, stack: ExitStack, module: str, flags: Mapping[str, object]) -> None:
        self._stack = stack
        self._module = module
        self._flags = [f"--{name}={value}" for name, value in flags.items()]
        self.address = f"127.0.0.1:{unclaimed_port()}"
        self.process = self.open()

    def open(self, build: Build | None = None) -> ServiceProcess:
        """Begin to start a process, of today's code or of another build."""
        flags = (f"--listen={self.address}", *self._flags)
        if build is None:
            process = ServiceProcess(self._module, *flags)
        else:
            process = ServiceProcess(self._module, *flags, environ=build.environ, folder=build.folder)
        self.process = self._stack.enter_context(process)
        return process

    def ready(self) -> None:
        """Wait until the process serves."""
        assert self.process.wait_ready().address == self.address

    def end(self, by: signal.Signals, seconds: float = 180.0) -> int:
        """End the process. Returns its exit status."""
        self.process.signal(by)
        return self.process.process.wait(seconds)

    def start(self, build: Build | None = None) -> float:
        """A new process where the old one was; returns the seconds until it was ready."""
        began = time.monotonic()
        self.open(build)
        self.ready()
        return time.monotonic() - began


class StandingFleet:
    """A manager, two workers of one model with a pool each, and gateways that use both.

    Args:
        model: the model's folder, served as ``tiny``.
        stack: ends the processes.
        gateways: how many of them.
        worker: flags of both workers beside the usual ones.
        gateway: flags of each gateway.
    """

    def __init__(
        self,
        model: Path,
        stack: ExitStack,
        *,
        gateways: int = 1,
        worker: Mapping[str, object] | None = None,
        gateway: Mapping[str, object] | None = None,
    ) -> None:
        quiet = {"metrics": ""}
        # A worker's successor gets its pool when the lease is over.
        self.manager = Post(stack, "kv_manager", {**quiet, "lease-seconds": 1})
        self.manager.ready()
        usual = {
            **quiet,
            "model": model,
            "served-name": "tiny",
            "manager": self.manager.address,
            "dtype": "float32",
            "threads": 1,
            "num-blocks": 400,
        }
        self.workers = [Post(stack, "model_worker", {**usual, "pool": pool, **(worker or {})}) for pool in POOLS]
        for one in self.workers:
            one.ready()
        addresses = ",".join(one.address for one in self.workers)
        front = {**quiet, "http-listen": "", "workers": addresses, **(gateway or {})}
        self.gateways = [Post(stack, "gateway", front) for _ in range(gateways)]
        for one in self.gateways:
            one.ready()

    @property
    def gateway(self) -> Post:
        """The only one."""
        (only,) = self.gateways
        return only
