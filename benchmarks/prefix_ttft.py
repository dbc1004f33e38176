"""How much a shared prefix shortens the time to the first token.

    python benchmarks/prefix_ttft.py [--gateway 127.0.0.1:50050] [--pairs 5] [--json]

Each pair is a cold request (a prefix nobody has sent) and a warm one (the same prefix, another ending), one after the
other on an idle server; the ratio of their times to the first token is taken within the pair, so that a busy machine
slows both.
"""

import argparse
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass

import grpc

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

SHARED_TOKENS = 1_000
OWN_TOKENS = 10


@dataclass(frozen=True)
class Pair:
    """Times in seconds."""

    cold_seconds: float
    warm_seconds: float
    cold_cached_tokens: int
    warm_cached_tokens: int

    @property
    def ratio(self) -> float:
        return self.cold_seconds / self.warm_seconds


def first_token(gateway: gateway_pb2_grpc.GatewayServiceStub, ids: list[int]) -> tuple[float, int]:
    """Seconds to the first token as the client sees them, and the cached tokens."""
    request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=ids))
    request.options.max_tokens = 2
    request.options.temperature = 0
    request.options.ignore_eos = True
    began = time.perf_counter()
    seconds, cached = 0.0, 0
    for answer in gateway.Generate(request, timeout=300):
        if answer.token_ids and not seconds:
            seconds = time.perf_counter() - began
        if answer.HasField("usage"):
            cached = answer.usage.cached_tokens
    return seconds, cached


def measure(address: str, pairs: int, seed: int) -> list[Pair]:
    dice = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [dice.randrange(100, 49_000) for _ in range(count)]

    with grpc.insecure_channel(address) as channel:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        first_token(gateway, ids(16))  # connections and lazily touched memory
        measured = []
        for _ in range(pairs):
            shared = ids(SHARED_TOKENS)
            cold, cold_cached = first_token(gateway, [*shared, *ids(OWN_TOKENS)])
            warm, warm_cached = first_token(gateway, [*shared, *ids(OWN_TOKENS)])
            measured.append(Pair(cold, warm, cold_cached, warm_cached))
        return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", default="127.0.0.1:50050")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    pairs = measure(arguments.gateway, arguments.pairs, arguments.seed)
    median = statistics.median(pair.ratio for pair in pairs)
    if arguments.json:
        print(json.dumps({"pairs": [asdict(pair) for pair in pairs], "median_ratio": median}))
        return
    print(f"{SHARED_TOKENS} shared and {OWN_TOKENS} own tokens, seed {arguments.seed}")
    print("cold ms   warm ms   ratio   cached tokens")
    for pair in pairs:
        print(
            f"{pair.cold_seconds * 1000:7.0f}   {pair.warm_seconds * 1000:7.0f}   {pair.ratio:5.1f}"
            f"   {pair.cold_cached_tokens} -> {pair.warm_cached_tokens}"
        )
    print(f"median ratio {median:.1f}")


if __name__ == "__main__":
    main()
