"""Hostile messages: never a crash, always a documented refusal, and a refusal has no effect.

Each refusal is compared by the pools' state digests before and after; each accepted message must leave every invariant
intact. ``OCTAVO_FUZZ_SEED`` chooses another run; the seed is printed.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from kv_fuzzer import MAX_POOL_BLOCKS, POOLS, Fuzzer, InProcess, OverGrpc, Target
from kv_hostile import damage
from kv_refusals import Refusal
from kv_traffic import NextStep, attach_parts, pack, pool_spec, question

from octavo.kv.v1 import attach_pb2, inspect_pb2, kv_manager_pb2, lookup_pb2, steps_pb2
from service.channels import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SEED = int(os.environ.get("OCTAVO_FUZZ_SEED", "3"))
SOAK_SEED = int(os.environ.get("OCTAVO_FUZZ_SEED", str(time.time_ns() % 2**32)))


def fuzz(target: Target, messages: int, seed: int) -> Fuzzer:
    print(f"seed {seed}")
    fuzzer = Fuzzer(target, seed)
    fuzzer.run(messages)
    print(fuzzer.report())
    return fuzzer


@pytest.fixture(scope="module")
def manager(run_manager):
    flags = ("--metrics", "", "--max-pool-blocks", str(MAX_POOL_BLOCKS), "--lease-seconds", "3600")
    with run_manager(*flags) as process:
        with grpc.insecure_channel(process.grpc, CHANNEL_OPTIONS) as channel:
            yield process, channel
        assert process.process.poll() is None


@pytest.mark.e2e
def test_bent_messages_in_process_reach_the_validation(tmp_path):
    """Branch coverage of whole-request validation and of adoption, by the fuzzer alone: at least 95 %."""
    data, report, settings = tmp_path / "data", tmp_path / "report.json", tmp_path / "coveragerc"
    settings.write_text("[report]\nexclude_also =\n    if TYPE_CHECKING:\n")
    files = "kv_manager/core/validation.py,kv_manager/core/adoption.py"
    common = [f"--data-file={data}", f"--rcfile={settings}"]
    coverage = [sys.executable, "-m", "coverage"]
    program = [str(HERE / "kv_fuzzer.py"), "--messages", "3000", "--seed", str(SEED)]
    for command in (
        [*coverage, "run", *common, "--branch", f"--include={files}", *program],
        [*coverage, "json", *common, "-o", str(report)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
        print(done.stdout)
        assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())["files"]
    assert len(found) == 2
    for name, each in found.items():
        total = each["summary"]
        branches = 100 * total["covered_branches"] / total["num_branches"]
        print(f"{name}: {branches:.1f} % of {total['num_branches']} branches, not {each['missing_branches']}")
        assert branches >= 95


@pytest.mark.e2e
def test_bent_messages_over_grpc(manager):
    fuzzer = fuzz(OverGrpc(manager[1]), 500, SEED)
    assert fuzzer.served > 50
    assert len(fuzzer.refused) > 8


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_bent_messages_in_process_for_long():
    fuzz(InProcess(), 40_000, SOAK_SEED)


@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.timeout(3_600)
def test_bent_messages_over_grpc_for_long(manager):
    fuzz(OverGrpc(manager[1]), 6_000, SOAK_SEED)


# --- bytes


def raw_call(channel: grpc.Channel, method: str, data: list[bytes]) -> object:
    """A call whose request bytes nobody has checked."""
    call = kv_manager_pb2.DESCRIPTOR.services_by_name["KvManagerService"].methods_by_name[method]
    path = f"/{call.containing_service.full_name}/{method}"
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    behaviour = kinds[call.client_streaming, call.server_streaming](path)
    try:
        answer = behaviour(iter(data) if call.client_streaming else data[0], timeout=60)
        if not call.server_streaming:
            return answer
        first = next(answer, None)
        answer.cancel()
        return first
    except grpc.RpcError as error:
        return Refusal.of(error)


def pool_states(target: OverGrpc) -> dict[str, bytes]:
    states = {}
    for pool in target.call("ListPools", [inspect_pb2.ListPoolsRequest()]).pools:
        request = inspect_pb2.CheckIntegrityRequest(pool=pool.header.pool)
        states[pool.header.pool] = target.call("CheckIntegrity", [request]).state_digest
    return states


@pytest.mark.e2e
def test_damaged_bytes_on_every_call(manager):
    """Cut, flipped, doubled and random bytes, on every call; what is no message is INVALID_ARGUMENT, not UNKNOWN."""
    channel, target, dice = manager[1], OverGrpc(manager[1]), random.Random(SEED)
    for name in POOLS:
        target.call("Attach", attach_parts(dice, name))
    counts = {"refused": 0, "answered": 0}
    methods = kv_manager_pb2.DESCRIPTOR.services_by_name["KvManagerService"].methods_by_name
    for number in range(25 * len(methods)):
        method = list(methods)[number % len(methods)]
        before = pool_states(target)
        if not before:  # a flipped bit may well make a valid Detach
            target.call("Attach", attach_parts(dice, POOLS[0]))
            before = pool_states(target)
        name = dice.choice(sorted(before))
        if method in ("Step", "Steps"):
            shown = target.call("InspectPool", [inspect_pb2.InspectPoolRequest(pool=name)])
            messages = [NextStep(dice, shown, 0).request]
        elif method == "Attach":
            messages = attach_parts(dice, name)
        else:
            asked = ""
            while asked != method:
                asked, message = question(dice, name, 1)
            messages = [message]
        data = [message.SerializeToString() for message in messages]
        place = dice.randrange(len(data))
        data[place] = damage(dice, messages[place])
        answer = raw_call(channel, method, data)
        if isinstance(answer, Refusal):
            counts["refused"] += 1
            assert answer.documented, (method, data, answer)
            assert pool_states(target) == before, (method, data, answer)
        else:
            counts["answered"] += 1
    print(f"seed {SEED}: {counts}")
    assert counts["refused"] > 100


@pytest.mark.e2e
def test_no_message_at_all(manager):
    """Field number 0 is no protobuf."""
    methods = kv_manager_pb2.DESCRIPTOR.services_by_name["KvManagerService"].methods_by_name
    for method in methods:
        answer = raw_call(manager[1], method, [b"\x00\x01\x02"])
        assert isinstance(answer, Refusal), method
        assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE"), method


@pytest.mark.e2e
def test_a_hostile_message_ends_its_stream_and_nothing_else(manager):
    """The step before it stands, the next stream goes on from there."""
    stub = manager[0].stub
    spec = pool_spec(random.Random(SEED), "pool")
    spec.step = 0
    epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch

    def step(number: int, **items: object) -> steps_pb2.StepRequest:
        return steps_pb2.StepRequest(pool="pool", epoch=epoch, step=number, completed_step=number - 1, **items)

    unknown = step(2, releases=[steps_pb2.Release(seq=2**64 - 1)])
    answers = stub.Steps(iter([step(1), unknown, step(3)]))
    assert next(answers).header.step == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert Refusal.of(caught.value).reason == "UNKNOWN_SEQUENCE"
    assert [answer.header.step for answer in stub.Steps(iter([step(2), step(3)]))] == [2, 3]


# --- size


@pytest.mark.e2e
def test_sixty_megabytes_of_tokens(manager):
    """15,000,000 ids: a prompt that never fits is an answer, everything else a refusal; the manager stays.

    In blocks of one token that is more than anybody may look up at once, and behind a window no pool is too small.
    """
    target, stub = OverGrpc(manager[1]), manager[0].stub
    ids = pack([7]) * 15_000_000
    spec = pool_spec(random.Random(SEED), "pool")
    spec.step = 0
    spec.ClearField("window")
    epoch = stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch
    head = {"pool": "pool", "epoch": epoch}
    whole = -(-15_000_001 // spec.block_size)

    rejected = stub.Step(
        steps_pb2.StepRequest(**head, step=1, admits=[steps_pb2.Admit(seq=1, token_ids=ids, num_tokens=1)])
    ).rejected[0]
    assert (rejected.needed, rejected.available) == (whole, spec.num_blocks)
    verdict = stub.CanAdmit(lookup_pb2.CanAdmitRequest(pool="pool", token_ids=ids))
    assert (verdict.verdict, verdict.needed) == (lookup_pb2.ADMIT_VERDICT_NEVER, whole)
    tokens_of_16 = attach_whole(stub, "tokens of 16", block_size=16)
    match = stub.MatchPrefix(lookup_pb2.MatchPrefixRequest(pools=["tokens of 16"], token_ids=ids)).matches[0]
    assert match.cached_tokens == 0
    windowed = attach_whole(stub, "windowed", block_size=1, window=4)

    admit = steps_pb2.Admit(seq=2, token_ids=pack([7, 7, 7]), num_tokens=3)
    stub.Step(steps_pb2.StepRequest(**head, step=2, completed_step=1, admits=[admit]))
    before = pool_states(target)
    live = attach_pb2.LiveSequence(seq=1, token_ids=ids, computed_tokens=1, granted_tokens=1, table=[1] * 1_000_000)
    refusals = [
        target.call(
            "Step",
            [
                steps_pb2.StepRequest(
                    **head,
                    step=3,
                    completed_step=2,
                    commits=steps_pb2.Commits(seqs=[2], starts=[3], counts=[15_000_000], token_ids=ids),
                )
            ],
        ),
        target.call(
            "Step",
            [
                steps_pb2.StepRequest(
                    **head,
                    step=3,
                    completed_step=2,
                    admits=[steps_pb2.Admit(seq=3, token_ids=ids[:-1], num_tokens=1)],
                )
            ],
        ),
        target.call(
            "Attach",
            [
                attach_pb2.AttachRequest(pool=spec),
                attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences(sequences=[live])),
            ],
        ),
        target.call("MatchPrefix", [lookup_pb2.MatchPrefixRequest(pools=["windowed"], token_ids=ids)]),
        target.call(
            "MatchPrefix",
            [lookup_pb2.MatchPrefixRequest(pools=["tokens of 16"], token_ids=ids, include_digests=True)],
        ),
        target.call(
            "Step",
            [
                steps_pb2.StepRequest(
                    pool="windowed",
                    epoch=windowed,
                    step=1,
                    admits=[steps_pb2.Admit(seq=1, token_ids=ids, num_tokens=1)],
                )
            ],
        ),
    ]
    reasons = [answer.reason for answer in refusals]
    assert reasons == ["OUT_OF_RANGE", "MALFORMED_TOKENS", "WRONG_BLOCK", *["OUT_OF_RANGE"] * 3]
    assert refusals[3].message == "token_ids: holds 15000000 full blocks of pool 'windowed', must be at most 1048576"
    assert refusals[4].message.startswith("include_digests: asks for 937500 digests, must be at most 262144")
    assert pool_states(target) == before
    for name, attached in (("tokens of 16", tokens_of_16), ("windowed", windowed)):
        stub.Detach(attach_pb2.DetachRequest(pool=name, epoch=attached))


def attach_whole(stub: object, name: str, **fields: int) -> int:
    """A pool of its own, so that the fuzzer's stays what it is."""
    spec = attach_pb2.PoolSpec(pool=name, worker_id="w", num_blocks=64, reuse_regime=1, **fields)
    return stub.Attach(iter([attach_pb2.AttachRequest(pool=spec)])).header.epoch


@pytest.mark.e2e
def test_more_than_a_message_may_hold(manager):
    """The limit is the transport's: RESOURCE_EXHAUSTED, before anything is read."""
    target = OverGrpc(manager[1])
    before = pool_states(target)
    request = lookup_pb2.MatchPrefixRequest(token_ids=bytes(MAX_MESSAGE_BYTES))
    answer = raw_call(manager[1], "MatchPrefix", [request.SerializeToString()])
    assert answer.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert pool_states(target) == before
