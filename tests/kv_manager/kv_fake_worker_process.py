"""A fake worker as a process: attaches, loads its pool, says so, and then steps until it is killed.

python tests/kv_manager/kv_fake_worker_process.py ADDRESS POOL
"""

import itertools
import sys

import grpc

from octavo.kv.v1 import attach_pb2, common_pb2, kv_manager_pb2_grpc, steps_pb2

PROMPT_TOKENS = 256
NUM_BLOCKS, BLOCK_SIZE = 512, 16


def spec(pool: str) -> attach_pb2.PoolSpec:
    return attach_pb2.PoolSpec(
        pool=pool,
        worker_id="fake",
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        reuse_regime=common_pb2.REUSE_REGIME_ORDERED,
    )


def requests(pool: str, epoch: int):
    """A prompt of 16 blocks in every step; eight run at a time."""
    for step in itertools.count(1):
        request = steps_pb2.StepRequest(pool=pool, epoch=epoch, step=step, completed_step=max(0, step - 2))
        if step > 8:
            request.releases.add(seq=step - 8)
        ids = b"".join((step * PROMPT_TOKENS + token).to_bytes(4, "little") for token in range(PROMPT_TOKENS))
        request.admits.add(seq=step, token_ids=ids, num_tokens=PROMPT_TOKENS, arrival=step)
        yield request


def main() -> None:
    address, pool = sys.argv[1:]
    stub = kv_manager_pb2_grpc.KvManagerServiceStub(grpc.insecure_channel(address))
    epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec(pool))])).header.epoch
    for answer in stub.Steps(requests(pool, epoch)):
        if answer.header.step == 20:
            print("loaded", flush=True)


if __name__ == "__main__":
    main()
