"""Building the request for the next step: what became known, who is forked, who ends, who grows, who comes in."""

from typing import TYPE_CHECKING

from model_worker.engine.group import Group, members_of
from model_worker.engine.sequence import EndReason, Phase, Sequence
from model_worker.engine.wire import pack_ids, root_of
from octavo.kv.v1 import steps_pb2

if TYPE_CHECKING:
    from model_worker.engine.scheduler import Scheduler

RELEASE_REASONS = {
    EndReason.STOP: steps_pb2.RELEASE_REASON_FINISHED,
    EndReason.LENGTH: steps_pb2.RELEASE_REASON_FINISHED,
    EndReason.ABORTED: steps_pb2.RELEASE_REASON_ABORTED,
    EndReason.REJECTED: steps_pb2.RELEASE_REASON_ABORTED,
    EndReason.FAILED: steps_pb2.RELEASE_REASON_FAILED,
}


def build(scheduler: "Scheduler") -> steps_pb2.StepRequest:
    """The request for the next step, in the order in which it is served (rule 3). Books what it asks for."""
    request = steps_pb2.StepRequest(
        pool=scheduler.pool,
        epoch=scheduler.epoch,
        step=scheduler.step + 1,
        completed_step=scheduler.completed_step,
    )
    scheduler.unsettled = False
    scheduler.planned.clear()
    _commit(scheduler, request)
    _fork(scheduler, request)
    _release(scheduler, request)
    budget = _advance(scheduler, request, scheduler.limits.max_batch_tokens)
    _ask(scheduler, request, budget)
    if says_something(request):
        _look_ahead(scheduler, request)
    return request


def says_something(request: steps_pb2.StepRequest) -> bool:
    """Whether a request asks for or tells anything that cannot wait. Commits can: nobody else needs them at once."""
    return bool(request.advances.seqs or request.releases or request.forks or request.admits or request.resumes)


def take_back(scheduler: "Scheduler", request: steps_pb2.StepRequest) -> None:
    """The request is not sent: what it would have committed goes with a later one."""
    for seq, start in zip(request.commits.seqs, request.commits.starts, strict=True):
        scheduler.running[seq].committed = start


def _commit(scheduler: "Scheduler", request: steps_pb2.StepRequest) -> None:
    """Tell ids once per full block (rules 8 and 9)."""
    size = scheduler.limits.block_size
    ids: list[int] = []
    for sequence in scheduler.running.values():
        written = min(len(sequence.tokens), sequence.computed)
        if written // size > sequence.committed // size:
            request.commits.seqs.append(sequence.seq)
            request.commits.starts.append(sequence.committed)
            request.commits.counts.append(written - sequence.committed)
            ids += sequence.tokens[sequence.committed : written]
            sequence.committed = written
    request.commits.token_ids = pack_ids(ids)


def _fork(scheduler: "Scheduler", request: steps_pb2.StepRequest) -> None:
    """Fork followers from members of their group that have computed what they share (design 3.9)."""
    groups = {id(one.group): one.group for one in scheduler.running.values() if one.group is not None}
    for group in groups.values():
        for child in group.followers:
            if (place := _fork_point(group, child)) is None:
                continue
            parent, num_tokens = place
            _fork_child(scheduler, parent, child, num_tokens)
            last = request.forks[-1] if request.forks else None
            if last is None or (last.parent, last.num_tokens) != (parent.seq, num_tokens):
                last = request.forks.add(parent=parent.seq, num_tokens=num_tokens)
            last.children.append(child.seq)


def _fork_point(group: Group, child: Sequence) -> tuple[Sequence, int] | None:
    """From whom and at which length a follower can be forked now: its beam if that is here, else where all part."""
    if child.parked:
        return None
    if child.cut_from is not None:
        parent, num_tokens = child.cut_from
        if parent.phase is Phase.RUNNING and parent.computed >= num_tokens:
            return parent, num_tokens
        if parent.parked:
            return None
    shared = group.shared_tokens
    lead = next((one for one in group.members if one.phase is Phase.RUNNING and one.computed >= shared), None)
    return None if lead is None else (lead, shared)


def _fork_child(scheduler: "Scheduler", parent: Sequence, child: Sequence, num_tokens: int) -> None:
    """Book a child that shares its parent's first ``num_tokens`` tokens; the parent has computed them."""
    if child.seq == 0:
        scheduler.last_seq += 1
        child.seq = scheduler.last_seq
    child.phase = Phase.RUNNING
    child.computed = num_tokens
    child.committed = min(parent.committed, num_tokens)
    child.table = parent.table[: scheduler.blocks(num_tokens)]
    child.hit_blocks = 0
    child.told_priority = parent.told_priority
    child.forked = parent.forked = True
    child.fork_tokens = num_tokens
    parent.fork_tokens = max(parent.fork_tokens, num_tokens)
    child.timeline.first_step = child.timeline.first_step or parent.timeline.first_step
    child.timeline.cached_tokens = parent.timeline.cached_tokens
    scheduler.running[child.seq] = child
    scheduler.forking.append(child)
    scheduler.statistics.forks += 1


def _release(scheduler: "Scheduler", request: steps_pb2.StepRequest) -> None:
    for sequence in scheduler.due:
        request.releases.add(seq=sequence.seq, reason=RELEASE_REASONS[sequence.end_reason or EndReason.FAILED])
        scheduler.running.pop(sequence.seq, None)
        scheduler.parked.pop(sequence.seq, None)
    scheduler.due.clear()
    for seq in scheduler.withdrawn:
        request.releases.add(seq=seq, reason=steps_pb2.RELEASE_REASON_ABORTED)
    scheduler.withdrawn.clear()


def _advance(scheduler: "Scheduler", request: steps_pb2.StepRequest, budget: int) -> int:
    """Decodes first, then prompt chunks, both by rank. Returns what is left of the budget.

    So a decoding sequence misses no step however many prompts wait, and no step computes more than the budget: the gap
    between two of its tokens is bounded by the time of one full step.
    """
    active = sorted(scheduler.running.values(), key=lambda one: one.rank)
    active = [one for one in active if one.phase is Phase.RUNNING and not one.exhausted and not _sits_out(one)]
    # One position to compute is a decode, or the last token of a prompt: either way it yields a token.
    for sequence in [one for one in active if len(one.tokens) - one.computed <= 1]:
        if budget == 0:
            break
        budget -= 1
        end = sequence.computed + 1
        scheduler.planned[sequence.seq] = end
        if sequence.forked or scheduler.blocks(end) > len(sequence.table):
            _grow(request, sequence, end)
    for sequence in [one for one in active if len(one.tokens) - one.computed > 1]:
        if budget == 0:
            break
        end = _chunk_end(scheduler, sequence.computed, len(sequence.tokens), budget)
        budget -= end - sequence.computed
        scheduler.planned[sequence.seq] = end
        _grow(request, sequence, end)
    return budget


def _look_ahead(scheduler: "Scheduler", request: steps_pb2.StepRequest) -> None:
    """Ask for room ahead (design 3.8) for every lone sequence that decodes: one request then serves many steps.

    Not while anybody waits, when each step has a request anyway, and only where twice as much is left: what is held
    ahead is missing to others.
    """
    if not scheduler.room_ahead or scheduler.queue or scheduler.asking:
        return
    rooms = {}
    for seq, end in scheduler.planned.items():
        sequence = scheduler.running[seq]
        room = min(end + scheduler.limits.steps_ahead, sequence.limit - 1)
        if sequence.group is None and end == sequence.computed + 1 and scheduler.blocks(room) > len(sequence.table):
            rooms[seq] = room
    wanted = sum(scheduler.blocks(room) - len(scheduler.running[seq].table) for seq, room in rooms.items())
    if not rooms or scheduler.pool_stats.free_blocks + scheduler.pool_stats.cached_blocks < 2 * wanted:
        return
    named = set(request.advances.seqs)
    for seq in [one for one in rooms if one not in named]:
        _grow(request, scheduler.running[seq], scheduler.planned[seq])
    request.advances.rooms.extend(rooms.get(seq, 0) for seq in request.advances.seqs)


def _sits_out(sequence: Sequence) -> bool:
    """A beam's next token is chosen when the step of every beam has ended: it has nothing to compute before."""
    search = sequence.group.search if sequence.group is not None else None
    return search is not None and sequence.computed >= len(sequence.tokens)


def _grow(request: steps_pb2.StepRequest, sequence: Sequence, end: int) -> None:
    request.advances.seqs.append(sequence.seq)
    request.advances.num_tokens.append(end)


def _chunk_end(scheduler: "Scheduler", start: int, length: int, budget: int) -> int:
    """The end of the next chunk: at a block edge where it can be, since only there late hits are found."""
    end = min(length, start + min(budget, scheduler.limits.max_chunk))
    if end < length:
        aligned = end - end % scheduler.limits.block_size
        end = aligned if aligned > start else end
    return end


def _ask(scheduler: "Scheduler", request: steps_pb2.StepRequest, budget: int) -> None:
    """Ask for the head of the queue and for who stands behind it; nobody overtakes a head that has no room.

    The manager orders what it is asked for by the priorities it was told, which age no more: whoever it would serve
    before somebody that stands ahead here waits for the next request.
    """
    last: tuple[int, bool, int] | None = None
    queue = scheduler.queue
    while budget > 0 and scheduler.can_ask():
        head = queue.head
        place = (head.told_priority if head.parked else head.level, not head.again, head.arrival)
        if last is not None and place < last:
            break
        if head.parked:
            parked = [one for one in members_of(head) if one.parked]
            if len(parked) > budget:
                break
            queue.pop()
            budget -= _resume(scheduler, request, parked)
        else:
            queue.pop()
            budget -= _admit(scheduler, request, head, budget)
        last = place
    if queue and budget > 0 and not scheduler.has_room(queue.head):
        scheduler.delay(queue.head)


def _resume(scheduler: "Scheduler", request: steps_pb2.StepRequest, parked: list[Sequence]) -> int:
    """Ask for all blocks of a parked sequence, or of all members of a group, and room for a token each."""
    for sequence in parked:
        sequence.phase = Phase.ASKING
        scheduler.asking[sequence.seq] = sequence
        request.resumes.add(seq=sequence.seq, num_tokens=max(1, sequence.computed))
    return len(parked)


def _admit(scheduler: "Scheduler", request: steps_pb2.StepRequest, sequence: Sequence, budget: int) -> int:
    """Ask for a table; returns the tokens it may compute in this step."""
    chunk = _chunk_end(scheduler, 0, len(sequence.tokens), budget)
    if sequence.seq == 0:  # ids grow in the order of first admits, which is not that of arrivals
        scheduler.last_seq += 1
        sequence.seq = scheduler.last_seq
    sequence.phase = Phase.ASKING
    sequence.told_priority = sequence.level
    scheduler.asking[sequence.seq] = sequence
    admit = request.admits.add(
        seq=sequence.seq,
        token_ids=pack_ids(sequence.tokens),
        num_tokens=chunk,
        priority=sequence.told_priority,
        arrival=sequence.arrival,
        root=root_of(sequence),
        again=sequence.again,
    )
    if sequence.group is not None:
        _admit_lead(scheduler, admit, sequence.group)
    return chunk


def _admit_lead(scheduler: "Scheduler", admit: steps_pb2.Admit, group: Group) -> None:
    """Capacity is counted for the whole group: what its lead shares once, what the others need beside it."""
    group.id = group.id or admit.seq
    if group.id != admit.seq:
        admit.group = group.id
    followers = group.followers
    if followers:
        shared = group.shared_tokens // scheduler.limits.block_size
        admit.beside_blocks = sum(scheduler.blocks(len(one.tokens) + 1) - shared for one in followers)
