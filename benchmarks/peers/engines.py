"""The engines by name: how each is started from its own environment, and what a run of it cost the machine."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psutil
from line_protocol import start_server
from workloads import Request

HERE = Path(__file__).resolve().parent
# What setup.sh writes below its folder.
OPENVINO_MODEL, LLAMA_MODEL, LLAMA_DRIVER = "model-openvino", "model-bf16.gguf", "llama.cpp/llama-driver"
PRELOADED = ("tcmalloc/usr/lib/*/libtcmalloc_minimal.so.4", "vllm/lib/libiomp5.so")


class EngineMissing(Exception):
    """An engine is not installed, or did not start."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command and what it adds to the environment."""

    command: list[str]
    environ: Mapping[str, str] = field(default_factory=dict)


def launch(name: str, model: Path, peers: Path, octavo_flags: list[str]) -> Launch:
    """How to start an engine.

    Raises:
        EngineMissing: its environment was not made, with what is missing.
    """
    if name.startswith("octavo"):
        script = "octavo_engine.py" if name == "octavo-engine" else "octavo_services.py"
        flags = ["--in-process", *octavo_flags] if name == "octavo-embedded" else octavo_flags
        return Launch([sys.executable, str(HERE / script), str(model), *flags])
    if name.startswith("transformers"):
        flags = ["--continuous"] if "continuous" in name else []
        return _in_environment(peers, "transformers", "transformers_peer.py", [str(model), *flags, *_dtype(name)])
    if name.startswith("vllm"):
        libraries = [str(_found(peers, pattern)) for pattern in PRELOADED]
        start = _in_environment(peers, "vllm", "vllm_peer.py", [str(model), *_dtype(name)])
        return Launch(start.command, {"LD_PRELOAD": ":".join(libraries)})
    if name == "openvino":
        return _in_environment(peers, "openvino", "openvino_peer.py", [str(_found(peers, OPENVINO_MODEL))])
    assert name == "llama.cpp", name
    arguments = [str(_found(peers, LLAMA_DRIVER)), str(_found(peers, LLAMA_MODEL))]
    return Launch([sys.executable, str(HERE / "llama_cpp_peer.py"), *arguments])


ENGINES = {
    "octavo": "gateway, worker and KV manager over gRPC",
    "octavo-embedded": "the same with the KV manager inside the worker",
    "octavo-engine": "the engine in one process, no gateway and no gRPC",
    "vllm": "LLM.generate, bfloat16, compiled",
    "vllm-float32": "the same in float32",
    "openvino": "ContinuousBatchingPipeline, 16-bit weights",
    "llama.cpp": "its library, batched continuously, BF16",
    "transformers": "generate, padded, bfloat16",
    "transformers-float32": "the same in float32",
    "transformers-continuous": "generate_batch, bfloat16",
}
# Nothing here computes in more than 16 bits per weight; these are what the gate compares with.
SIXTEEN_BIT_PEERS = ("vllm", "openvino", "llama.cpp", "transformers", "transformers-continuous")


def _dtype(name: str) -> list[str]:
    return ["--dtype", "float32" if name.endswith("float32") else "bfloat16"]


def _in_environment(peers: Path, environment: str, script: str, arguments: list[str]) -> Launch:
    return Launch([str(_found(peers, f"{environment}/bin/python")), str(HERE / script), *arguments])


def _found(peers: Path, pattern: str) -> Path:
    found = sorted(peers.glob(pattern))
    if not found:
        raise EngineMissing(f"no {pattern} in {peers}: benchmarks/peers/setup.sh makes it")
    return found[0]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one engine.

    Attributes:
        seconds: as its process took it.
        tokens: generated, by request.
        arrivals: see line_protocol.
        cpu_seconds: processor time of its processes.
        foreign: share of the machine that others used meanwhile, 0 to 1.
    """

    seconds: float
    tokens: list[int]
    arrivals: list[list[float]] | None
    cpu_seconds: float
    foreign: float


class EngineProcess:
    """A loaded engine that waits for runs; a context manager.

    Attributes:
        version: name and version, as it says itself.
        settings: as it says itself.
    """

    def __init__(self, start: Launch) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by _stop
        self._process = start_server(
            start.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **start.environ},
        )
        try:
            ready = self._read()
        except BaseException:
            self._stop()
            raise
        self.version, self.settings = str(ready["ready"]), str(ready["settings"])

    def run(self, requests: list[Request], latencies: bool = False) -> Measured:
        """Run requests that arrive together.

        Raises:
            EngineMissing: the engine ended.
        """
        order = {"requests": [[one.prompt, one.output] for one in requests], "latencies": latencies}
        line = json.dumps(order)
        own, machine = self._cpu_seconds(), _busy_seconds()
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        answer = self._read()
        own, machine = self._cpu_seconds() - own, _busy_seconds() - machine
        seconds = float(answer["seconds"])
        foreign = max(0.0, machine - own) / (seconds * (os.cpu_count() or 1))
        return Measured(seconds, answer["tokens"], answer["arrivals"], own, min(foreign, 1.0))

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            last = [text for text in self._log.read().splitlines() if text.strip()][-5:]
            raise EngineMissing(f"ended with status {self._process.wait()}: {' | '.join(last)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _cpu_seconds(self) -> float:
        """Of the process and all it started; the short-lived among them are seen when they are waited for."""
        root = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
        return sum(one.user + one.system + one.children_user + one.children_system for one in times)

    def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()


def _busy_seconds() -> float:
    """Processor time that was not idle, of all processes and of neighbours on the same host."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal
