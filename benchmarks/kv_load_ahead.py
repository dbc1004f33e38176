"""The worker in small of ``kv_load``, asking for room ahead as the real one does: most of its steps need no request.

A request goes out when somebody outgrows its table, ends or comes, and then asks room for ``ROOM_STEPS`` for everybody
whose table is shorter than that; two more follow, so that the manager hears of the end of that step (design rule 7).

    table of a sequence    | known ............ | length | room of 32 steps |
"""

from dataclasses import dataclass

from kv_load import BLOCK_SIZE, DecodeLoad

from octavo.kv.v1 import steps_pb2

ROOM_STEPS = 32
"""As ``model_worker/engine/batch.py`` has it."""
TOLD_AFTER = 2
"""Requests that follow one that said something: requests overlap the steps, so the end is told that much later."""


def blocks(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_SIZE)


@dataclass(slots=True)
class Running:
    """One sequence.

    Attributes:
        length: tokens after the step that comes next.
        known: the committed length.
        ends: the length at which it is replaced by a new prompt.
        table: blocks it has.
    """

    seq: int
    length: int
    known: int
    ends: int
    table: int = 0


class AheadLoad(DecodeLoad):
    """As ``DecodeLoad``, but ``next_request`` is None for a step that needs none, and ``heard`` wants every answer."""

    def __init__(self, pool: str, sequences: int, *, context: int = 512, output: int = 256, seed: int = 0) -> None:
        super().__init__(pool, sequences, context=context, output=output, seed=seed)
        self._running: dict[int, Running] = {}
        self._to_follow = 0

    def next_request(self) -> steps_pb2.StepRequest | None:
        """One more token for everybody."""
        request = self._request()
        for each in self._running.values():
            each.length += 1
        for each in [each for each in self._running.values() if each.length > each.ends]:
            request.releases.add(seq=each.seq, reason=steps_pb2.RELEASE_REASON_FINISHED)
            del self._running[each.seq]
            self._admit(request, self.output)
        # Who is new has a length of its prompt and no table yet.
        decoding = [each for each in self._running.values() if each.table]
        if request.releases or any(blocks(each.length) > each.table for each in decoding):
            self._to_follow = TOLD_AFTER
            self._ask_ahead(request, decoding)
        elif self._to_follow:
            self._to_follow -= 1
        else:
            self.step -= 1  # nothing is sent: the step counts as part of the last one
            return None
        self._commit(request, decoding)
        return request

    def heard(self, response: steps_pb2.StepResponse) -> None:
        """The answer to a request."""
        super().heard(response)
        for grant in response.grants:
            self._running[grant.seq].table = grant.first_index + len(grant.blocks)
            self.crossings += len(grant.blocks)

    def _ask_ahead(self, request: steps_pb2.StepRequest, decoding: list[Running]) -> None:
        advances = request.advances
        for each in decoding:
            room = min(each.length + ROOM_STEPS, each.ends)
            if blocks(room) > each.table:
                advances.seqs.append(each.seq)
                advances.num_tokens.append(each.length)
                advances.rooms.append(room)

    def _commit(self, request: steps_pb2.StepRequest, decoding: list[Running]) -> None:
        commits = request.commits
        for each in decoding:
            written = each.length - 1
            if written // BLOCK_SIZE > each.known // BLOCK_SIZE:
                commits.seqs.append(each.seq)
                commits.starts.append(each.known)
                commits.counts.append(written - each.known)
                commits.token_ids += self._dice.randbytes(4 * (written - each.known))
                each.known = written

    def _admit(self, request: steps_pb2.StepRequest, output: int) -> None:
        super()._admit(request, output)
        admit = request.admits[-1]
        self._running[admit.seq] = Running(admit.seq, admit.num_tokens, admit.num_tokens, admit.num_tokens + output)
