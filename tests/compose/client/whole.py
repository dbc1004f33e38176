"""When things are whole again: ``python whole.py GATEWAY MANAGER WORKERS SINCE SECONDS WHAT...``.

Asks until all of WHAT is so, or SECONDS have passed since SINCE, a moment in seconds since 1970. Prints a JSON object:
how many seconds after SINCE each was so, null for what never was.

    served   the gateway generates a token
    sound    the manager finds no violation, and no pool holds anything for anybody
    workers  the gateway can use all of them
"""

import json
import sys
import time
from collections.abc import Callable

import grpc

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from service.channels import open_channel

CALL_SECONDS = 5.0
BETWEEN_SECONDS = 0.05


def served(address: str) -> bool:
    """A new connection each time: no wait of an old one is counted."""
    request = gateway_pb2.GenerateRequest(prompt="Once", options=gateway_pb2.GenerateOptions(max_tokens=1))
    with open_channel(address) as channel:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        return any(response.token_ids for response in gateway.Generate(request, timeout=CALL_SECONDS))


def usable_workers(address: str) -> int:
    with open_channel(address) as channel:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        models = gateway.ListModels(gateway_pb2.ListModelsRequest(), timeout=CALL_SECONDS).models
        return sum(model.ready_workers for model in models)


def sound(address: str) -> bool:
    """A violation ends the program: it is none that goes away."""
    with open_channel(address) as channel:
        manager = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        pools = manager.ListPools(inspect_pb2.ListPoolsRequest(), timeout=CALL_SECONDS).pools
        for pool in pools:
            asked = inspect_pb2.CheckIntegrityRequest(pool=pool.header.pool)
            if violations := manager.CheckIntegrity(asked, timeout=CALL_SECONDS).violations:
                raise SystemExit(f"pool {pool.header.pool}: {'; '.join(violations)}")
        held = [pool.stats.referenced_blocks + pool.stats.running_sequences for pool in pools]
        return bool(pools) and not any(held)


def main() -> None:
    gateway, manager, workers, since, seconds, *what = sys.argv[1:]
    known: dict[str, Callable[[], bool]] = {
        "served": lambda: served(gateway),
        "sound": lambda: sound(manager),
        "workers": lambda: usable_workers(gateway) == int(workers),
    }
    found: dict[str, float | None] = dict.fromkeys(what)
    while None in found.values() and time.time() < float(since) + float(seconds):
        for name in what:
            if found[name] is None:
                try:
                    if known[name]():
                        found[name] = time.time() - float(since)
                except grpc.RpcError:
                    pass
        time.sleep(BETWEEN_SECONDS)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
