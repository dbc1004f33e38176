"""The real KV manager in this process, behind the worker's client protocol."""

import collections
from collections.abc import Iterable

from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, steps_pb2


class InProcessManager:
    """``ManagerClient`` over a ``Manager`` object; ``restart`` replaces it as a crash would."""

    def __init__(self) -> None:
        self.manager = Manager(first_epoch=1)
        self.restarts = 0
        self._answers: collections.deque[steps_pb2.StepResponse] = collections.deque()

    def restart(self) -> None:
        self.restarts += 1
        self.manager = Manager(first_epoch=1 + 1000 * self.restarts)

    def capabilities(self) -> frozenset[int]:
        return frozenset(self.manager.get_capabilities().capabilities)

    def attach(self, parts: Iterable[attach_pb2.AttachRequest]) -> attach_pb2.AttachResponse:
        self._answers.clear()
        return self.manager.attach(parts)

    def send(self, request: steps_pb2.StepRequest) -> None:
        self._answers.append(self.manager.step(request))

    def receive(self) -> steps_pb2.StepResponse:
        return self._answers.popleft()

    def detach(self, request: attach_pb2.DetachRequest) -> None:
        self.manager.detach(request)

    def close(self) -> None:
        pass
