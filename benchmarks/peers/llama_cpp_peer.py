"""llama.cpp: its server with 32 slots and flash attention, a BF16 GGUF of the same weights, prompts as token ids.

Its offline tools batch only prompts of one length; the server is its continuous batching.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from line_protocol import Outcome, Run, Stopwatch, answer_runs, start_server
from workloads import Request

SLOTS = 32
# The longest workload: prompt and output of W5.
SLOT_TOKENS = 1_600


def load() -> tuple[str, str, Run]:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=Path, help="llama-server")
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    port = free_port()
    flags = ["--parallel", SLOTS, "--ctx-size", SLOTS * SLOT_TOKENS, "--threads", options.threads]
    flags += ["--flash-attn", "on", "--host", "127.0.0.1", "--port", port, "--offline", "--no-webui"]
    start_server([options.binary, "--model", options.model, *map(str, flags)])
    wait_healthy(port)
    version = subprocess.run([options.binary, "--version"], capture_output=True, text=True).stderr.split("\n")[0]

    def run(requests: list[Request], latencies: bool) -> Outcome:
        watch = Stopwatch(len(requests))
        asyncio.run(stream_all(port, requests, watch))
        return watch.outcome()

    return f"llama.cpp {version.removeprefix('version: ')}", f"BF16, server, {SLOTS} slots", run


async def stream_all(port: int, requests: list[Request], watch: Stopwatch) -> None:
    await asyncio.gather(*(stream(port, number, request, watch) for number, request in enumerate(requests)))


async def stream(port: int, number: int, request: Request, watch: Stopwatch) -> None:
    """One completion as server-sent events, one token each."""
    body = json.dumps(
        {
            "prompt": request.prompt,
            "n_predict": request.output,
            "ignore_eos": True,
            "temperature": 0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }
    ).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    async for line in reader:
        if line.startswith(b"data: {"):
            watch.took(number, len(json.loads(line[6:])["tokens"]))
    writer.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_healthy(port: int) -> None:
    """Return once the model is loaded; the server answers 503 until then and refuses before it listens."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("llama-server is not healthy after two minutes")


if __name__ == "__main__":
    answer_runs(load)
