"""Octavo as its users run it: ``octavo serve``, prompts as token ids through the gateway, prefix cache emptied first.

    python octavo_services.py MODEL [--in-process] [FLAGS OF octavo serve]

With --in-process the KV manager is an object inside the worker instead of a process of its own.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import grpc
import grpc.aio
from line_protocol import Outcome, Run, Stopwatch, answer_runs, start_server
from workloads import Request

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import kv_manager_pb2, kv_manager_pb2_grpc

REPOSITORY = Path(__file__).resolve().parents[2]
PORTS = ["--port", "--http-port", "--worker-port", "--manager-port", "--worker-metrics-port", "--manager-metrics-port"]
POOL = "default"
# The last releases reach the manager a step after the last token reached us.
RESET_PATIENCE_SECONDS = 10.0


def load() -> tuple[str, str, Run]:
    os.environ.setdefault("OCTAVO_KERNELS", "cpu")  # a worker without them refuses to start instead of being slow
    model, *flags = sys.argv[1:]
    if "--dtype" not in flags:
        flags += ["--dtype", "bfloat16"]
    command = [sys.executable, "-m", "cli.main", "serve", "--model", model, "--log-level", "warning", *flags]
    command += [word for port in PORTS for word in (port, "0")]
    stack = start_server(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert stack.stdout is not None
    line = stack.stdout.readline()
    if not line:
        raise SystemExit("octavo serve did not start; its messages are above")
    ready = json.loads(line)
    manager = kv_manager_pb2_grpc.KvManagerServiceStub(grpc.insecure_channel(ready["manager"]))
    loop = asyncio.new_event_loop()
    gateway = loop.run_until_complete(connect(ready["grpc"]))

    def run(requests: list[Request], latencies: bool) -> Outcome:
        forget_prefixes(manager)
        watch = Stopwatch(len(requests))
        loop.run_until_complete(stream_all(gateway, requests, watch))
        return watch.outcome()

    where = "manager in the worker" if "--in-process" in flags else "three services"
    return f"octavo {version('octavo')}", f"{where}, {' '.join(flags)}", run


async def connect(address: str) -> gateway_pb2_grpc.GatewayServiceStub:
    return gateway_pb2_grpc.GatewayServiceStub(grpc.aio.insecure_channel(address))


def forget_prefixes(manager: kv_manager_pb2_grpc.KvManagerServiceStub) -> None:
    """Empty the prefix cache, which the manager refuses while blocks are in use."""
    deadline = time.monotonic() + RESET_PATIENCE_SECONDS
    while True:
        try:
            manager.ResetPrefixCache(kv_manager_pb2.ResetPrefixCacheRequest(pool=POOL))
            return
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


async def stream_all(gateway: gateway_pb2_grpc.GatewayServiceStub, requests: list[Request], watch: Stopwatch) -> None:
    await asyncio.gather(*(stream(gateway, number, request, watch) for number, request in enumerate(requests)))


async def stream(gateway: gateway_pb2_grpc.GatewayServiceStub, number: int, request: Request, watch: Stopwatch) -> None:
    wanted = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=request.prompt))
    wanted.options.max_tokens = request.output
    wanted.options.temperature = 0
    wanted.options.ignore_eos = True
    async for answer in gateway.Generate(wanted):
        watch.took(number, len(answer.token_ids))


if __name__ == "__main__":
    answer_runs(load)
