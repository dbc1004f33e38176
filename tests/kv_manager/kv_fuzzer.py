"""The fuzzer: traffic, some of it bent, and after every call the question whether the manager kept its word.

    python tests/kv_manager/kv_fuzzer.py [--messages 3000] [--seed 1]

runs it in this process, as the coverage test does. A refusal must be documented and leave every pool's state digest as
it was; an accepted call must leave every invariant intact.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import grpc
from google.protobuf.message import Message
from kv_confusions import CONFUSIONS, confused_attach
from kv_hostile import bend
from kv_refusals import Refusal
from kv_traffic import NextStep, attach_parts, question

from kv_manager.core.manager import Manager
from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from service.errors import ServiceError

POOLS = ("pool", "other")
MAX_POOL_BLOCKS = 4_096
ATTACH_EVERY = 25

LIES = ("holds a digest that is not its tokens'", "is indexed, its parent is not")
"""Ids are the worker's word: one that tells two owners of a slot different ids makes its own cache wrong (I3, I6)."""

State = dict[str, bytes]


class Target(Protocol):
    """A manager, wherever it runs."""

    def call(self, method: str, messages: list[Message]) -> object:
        """The answer, or the Refusal."""


CORE_CALLS: dict[str, Callable[[Manager, list[Message]], object]] = {
    "Attach": lambda manager, parts: manager.attach(parts),
    "Detach": lambda manager, given: manager.detach(given[0]),
    "Step": lambda manager, given: manager.step(given[0]),
    "Steps": lambda manager, given: manager.step(given[0]),
    "MatchPrefix": lambda manager, given: manager.match_prefix(given[0]),
    "CanAdmit": lambda manager, given: manager.can_admit(given[0]),
    "InspectPool": lambda manager, given: manager.inspect_pool(given[0]),
    "InspectSequence": lambda manager, given: manager.inspect_sequence(given[0]),
    "InspectBlocks": lambda manager, given: manager.inspect_blocks(given[0]),
    "CheckIntegrity": lambda manager, given: manager.check_integrity(given[0]),
    "ListPools": lambda manager, given: manager.list_pools(),
    "GetCapabilities": lambda manager, given: manager.get_capabilities(),
    "ResetPrefixCache": lambda manager, given: manager.reset_prefix_cache(given[0]),
    "Drain": lambda manager, given: manager.drain(given[0]),
}


class InProcess:
    """The core alone."""

    def __init__(self) -> None:
        self.manager = Manager(max_blocks=MAX_POOL_BLOCKS)

    def call(self, method: str, messages: list[Message]) -> object:
        if method not in CORE_CALLS:
            return None  # Watch lives in the gRPC skin
        try:
            return CORE_CALLS[method](self.manager, messages)
        except ServiceError as error:
            return Refusal.of(error)


class OverGrpc:
    """A manager process."""

    STREAMS_IN = ("Attach", "Steps")
    STREAMS_OUT = ("Steps", "Watch")

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)

    def call(self, method: str, messages: list[Message]) -> object:
        behaviour = getattr(self._stub, method)
        given = iter(messages) if method in self.STREAMS_IN else messages[0]
        try:
            if method not in self.STREAMS_OUT:
                return behaviour(given, timeout=60)
            answers = behaviour(given, timeout=60)
            first = next(answers, None)
            answers.cancel()
            return first
        except grpc.RpcError as error:
            return Refusal.of(error)


class Fuzzer:
    """Drives one target.

    Attributes:
        refused: how often each code and reason was answered.
        served: how many bent messages were accepted.
    """

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._dice = random.Random(seed)
        self._heard = 0
        self.sent = 0
        self.served = 0
        self.refused: Counter[tuple[str, str]] = Counter()
        self._state: State = {}
        self._lied_to: set[str] = set()

    def run(self, messages: int) -> None:
        """Send that many bent messages, and the straight ones between them.

        Raises:
            AssertionError: the manager broke its word; the message holds the request.
        """
        while self.sent < messages:
            if self._dice.random() < 1 / ATTACH_EVERY or not self._state:
                self._attach()
            elif self._dice.random() < 0.2:
                self._question()
            else:
                self._step()

    def _attach(self) -> None:
        self._heard = 100
        self._send("Attach", attach_parts(self._dice, self._dice.choice(POOLS)), bent=0.5)
        self._confuse("Attach", confused_attach(self._dice, self._dice.choice(POOLS)))
        # A straight one after it, so that what follows has a pool to speak of.
        self._send("Attach", attach_parts(self._dice, POOLS[0]), bent=0)

    def _question(self) -> None:
        name = self._dice.choice(list(self._state))
        epoch = self._pool(name).summary.header.epoch
        method, message = question(self._dice, name, epoch)
        self._send(method, [message], bent=0.8)

    def _step(self) -> None:
        name = self._dice.choice(list(self._state))
        planned = NextStep(self._dice, self._pool(name), self._heard)
        self._heard = planned.heard
        method = self._dice.choice(("Step", "Step", "Steps"))
        if self._dice.random() < 0.25:
            confused = NextStep(self._dice, self._pool(name), self._heard)
            self._dice.choice(CONFUSIONS)(self._dice, confused)
            self._heard = confused.heard
            self._confuse(method, [confused.request])
            return
        answer = self._send(method, [planned.request], bent=0.5)
        if isinstance(answer, Refusal) or self._dice.random() < 0.1:
            # The straight one: served where the bent one was refused, else a repeated or conflicting step.
            answer = self._send("Step", [planned.request], bent=0)
        if isinstance(answer, Refusal) and answer.reason == "STALE_SEQUENCE_ID":
            self._attach()  # a bent id was taken for the greatest one; no straight one is new any more

    def _confuse(self, method: str, messages: list[Message]) -> None:
        self.sent += 1
        self.served += not isinstance(self._send(method, messages, bent=0), Refusal)

    def _pool(self, name: str) -> inspect_pb2.InspectPoolResponse:
        answer = self._target.call("InspectPool", [inspect_pb2.InspectPoolRequest(pool=name)])
        assert isinstance(answer, inspect_pb2.InspectPoolResponse), answer
        return answer

    def _send(self, method: str, messages: list[Message], bent: float) -> object:
        dice = self._dice
        is_bent = dice.random() < bent
        if is_bent:
            self.sent += 1
            place = dice.randrange(len(messages))
            messages = [*messages]
            messages[place] = bend(dice, messages[place], times=dice.choice((1, 1, 1, 2, 4)))
            if len(messages) > 1 and dice.random() < 0.1:
                dice.shuffle(messages)
        told = f"{method} {[str(message)[:2_000] for message in messages]}"
        try:
            answer = self._target.call(method, messages)
        except Exception as error:
            raise AssertionError(f"{method} crashed with {error!r}: {told}") from error
        if method in ("Attach", "Step", "Steps") and not isinstance(answer, Refusal):
            if is_bent:
                self._lied_to.add(answer.header.pool)
            elif method == "Attach":
                self._lied_to.discard(answer.header.pool)
        before, self._state = self._state, self._look(told)
        if isinstance(answer, Refusal):
            assert answer.documented, f"{answer} is not in the contract: {told}"
            assert self._state == before, f"{answer} had an effect: {told}"
            self.refused[answer.code.name, answer.reason] += 1
        else:
            self.served += is_bent
        return answer

    def _look(self, told: str) -> State:
        """Every pool's digest; all invariants are checked on the way."""
        pools = self._target.call("ListPools", [inspect_pb2.ListPoolsRequest()])
        assert isinstance(pools, inspect_pb2.ListPoolsResponse), f"{pools} after {told}"
        state: State = {}
        for pool in pools.pools:
            name = pool.header.pool
            verdict = self._target.call("CheckIntegrity", [inspect_pb2.CheckIntegrityRequest(pool=name)])
            assert isinstance(verdict, inspect_pb2.CheckIntegrityResponse), f"{verdict} after {told}"
            wrong = [line for line in verdict.violations if not (name in self._lied_to and line.endswith(LIES))]
            assert not wrong, f"{wrong} after {told}"
            state[name] = verdict.state_digest
        return state

    def report(self) -> str:
        """Counts by answer, one line each."""
        lines = [f"{self.sent} bent messages: {self.served} served, {self.sent - self.served} refused"]
        lines += [f"{count:7} {code} {reason}" for (code, reason), count in sorted(self.refused.items())]
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    fuzzer = Fuzzer(InProcess(), arguments.seed)
    fuzzer.run(arguments.messages)
    print(fuzzer.report())


if __name__ == "__main__":
    main()
