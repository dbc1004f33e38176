"""The KV manager beside vLLM's own KVCacheManager, in one run; docs/scaling.md says how to install the peer.

    PYTHONPATH=.:protos PEER/bin/python benchmarks/kv_peer.py [--sequences 64 256 1024] [--pairs 10] [--steps 100]

One step: every sequence decodes a token at context 512. vLLM's class is called as its scheduler does, once for each
sequence: append the token (which hashes full blocks), allocate_slots for a token, count it as computed. Ours is called
once for all, in-process and over a Steps stream to a manager process, from building the request to the answer decoded.
The three take turns; each round gives one ratio of medians, and the interval is a bootstrap over rounds.
"""

import argparse
import os
import platform
import queue
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc

# A script beside this one is named after the package it measures; it must not hide it.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(folder for folder in sys.path if Path(folder or ".").resolve() != HERE), str(HERE)]

from kv_load import BLOCK_SIZE, DecodeLoad  # noqa: E402
from kv_process import manager_process  # noqa: E402

from kv_manager.core.manager import Manager  # noqa: E402
from octavo.kv.v1 import attach_pb2, kv_manager_pb2_grpc  # noqa: E402
from service.channels import CHANNEL_OPTIONS  # noqa: E402

CONTEXT = 512
Step = Callable[[], None]


def ours_in_process(sequences: int, steps: int) -> Step:
    """The core, without a process between."""
    manager, load = Manager(), DecodeLoad("pool", sequences, context=CONTEXT)
    spec = load.spec(load.blocks_needed(steps))
    load.epoch = manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch
    manager.step(load.begin())

    def step() -> None:
        answer = manager.step(load.next_request())
        _ = [list(grant.blocks) for grant in answer.grants]

    return step


@contextmanager
def ours_over_grpc(sequences: int, steps: int) -> Iterator[Step]:
    """A manager process and one Steps stream."""
    load = DecodeLoad("pool", sequences, context=CONTEXT)
    with manager_process() as (address, _), grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        spec = load.spec(load.blocks_needed(steps))
        load.epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        answers = stub.Steps(iter(requests.get, None))
        requests.put(load.begin())
        next(answers)

        def step() -> None:
            requests.put(load.next_request())
            _ = [list(grant.blocks) for grant in next(answers).grants]

        yield step
        requests.put(None)


def vllm(sequences: int, steps: int) -> Step:
    """vLLM's classes, in this process."""
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    attention = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    longest = CONTEXT + BLOCK_SIZE + steps + BLOCK_SIZE
    config = KVCacheConfig(
        num_blocks=sequences * (longest // BLOCK_SIZE + 2),
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
    )
    manager = KVCacheManager(config, max_model_len=longest, scheduler_block_size=BLOCK_SIZE, hash_block_size=BLOCK_SIZE)
    dice = random.Random(0)
    running = []
    for number in range(sequences):
        length = CONTEXT + dice.randrange(BLOCK_SIZE)
        request = Request(
            request_id=str(number),
            prompt_token_ids=[dice.randrange(32_000) for _ in range(length)],
            sampling_params=SamplingParams(max_tokens=steps + 1),
            pooling_params=None,
            block_hasher=hasher,
        )
        manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, length) is not None
        request.num_computed_tokens = length
        running.append(request)

    def step() -> None:
        for request in running:
            request.append_output_token_ids(dice.getrandbits(14))
            blocks = manager.allocate_slots(request, 1)
            assert blocks is not None
            blocks.get_block_ids()
            request.num_computed_tokens += 1

    return step


def block_of_steps(step: Step, steps: int) -> float:
    """The median step in microseconds."""
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def interval(ratios: list[float]) -> tuple[float, float]:
    """Bootstrap 95 % interval of the median."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2_000))
    return medians[50], medians[1_949]


def compare(sequences: int, pairs: int, steps: int) -> None:
    """One row of the table."""
    total = (pairs + 1) * steps
    with ExitStack() as stack:
        sides = {
            "in-process": ours_in_process(sequences, total),
            "gRPC": stack.enter_context(ours_over_grpc(sequences, total)),
            "vLLM": vllm(sequences, total),
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(pairs + 1):
            for name, step in sides.items():
                found[name].append(block_of_steps(step, steps))
        found = {name: times[1:] for name, times in found.items()}  # the first block warms up
    line = f"{sequences:9}" + "".join(f"{statistics.median(found[name]):12.0f}" for name in found)
    for name in ("in-process", "gRPC"):
        ratios = [peer / ours for peer, ours in zip(found["vLLM"], found[name], strict=True)]
        low, high = interval(ratios)
        line += f"   {statistics.median(ratios):5.2f} ({low:.2f}-{high:.2f})"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64, 256, 1_024])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    try:
        import vllm as peer
    except ImportError as error:
        raise SystemExit(f"vLLM is not installed here ({error}): nothing was compared; see docs/scaling.md") from error
    print(f"vLLM {peer.__version__}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    print("sequences  in-process        gRPC        vLLM   vLLM/in-process      vLLM/gRPC     (microseconds, medians)")
    for sequences in options.sequences:
        compare(sequences, options.pairs, options.steps)


if __name__ == "__main__":
    main()
