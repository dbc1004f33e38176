"""What a step brought its callers."""

from dataclasses import dataclass, replace

from model_worker.engine.batch import Batch, Ended
from model_worker.engine.group import Group
from model_worker.engine.outcomes import advance_beams, best_samples
from model_worker.engine.scheduler import Scheduler
from model_worker.engine.sequence import EndReason, Phase, Sequence
from model_worker.sampling.results import Sampled, StepOutput, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step brought for one sequence.

    Attributes:
        tokens: new token ids.
        ended: set when the sequence ended.
        step: the step that brought it.
        logprobs: one entry per new token when the sequence asked for them.
    """

    sequence: Sequence
    tokens: tuple[int, ...]
    ended: Ended | None
    step: int
    logprobs: tuple[TokenLogprobs, ...] = ()


def book_output(scheduler: Scheduler, batch: Batch, output: StepOutput, completed_step: int) -> list[Progress]:
    """Book what a step sampled; what its callers are to hear of it."""
    progress = [Progress(one.sequence, (), one, batch.step) for one in _end_unsampled(scheduler, batch, output)]
    sound = {seq: one for seq, one in output.sampled.items() if not one.problem}
    searching = _take_candidates(batch, sound)
    tokens = {seq: one.token for seq, one in sound.items()}
    ended_by = {one.sequence.seq: one for one in scheduler.finish(batch, tokens, completed_step)}
    choosing: dict[int, Group] = {}
    for row in batch.rows:
        sequence = row.sequence
        sequence.prompt_logprobs += output.prompt_logprobs.get(sequence.seq, ())
        end = ended_by.get(sequence.seq)
        if sequence.seq in sound and (end is not None or sequence.phase is not Phase.ENDED):
            sampled = sound[sequence.seq]
            logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
            sequence.cumulative_logprob += sum(one.logprob for one in logprobs)
            told = Progress(sequence, (sampled.token,), end, batch.step, logprobs)
            if sequence.group is not None and sequence.group.chosen_at_end:
                sequence.group.held.append(told)
                choosing[id(sequence.group)] = sequence.group
            else:
                progress.append(told)
    for group in choosing.values():
        progress += _chosen(group, batch.step)
    for group in searching:
        progress += [_whole(text, batch.step) for text in advance_beams(scheduler, group)]
    return progress


def _take_candidates(batch: Batch, sound: dict[int, Sampled]) -> list[Group]:
    """Take the beams' candidates out of what was sampled. Returns the groups that they belong to."""
    groups: dict[int, Group] = {}
    for row in batch.rows:
        group = row.sequence.group
        if group is None or group.search is None or (sampled := sound.pop(row.sequence.seq, None)) is None:
            continue
        if sampled.logprobs is not None and row.sequence.phase is not Phase.ENDED:
            group.search.waiting[row.sequence] = sampled.logprobs.top
            groups[id(group)] = group
    return list(groups.values())


def _chosen(group: Group, step: int) -> list[Progress]:
    """The best samples of a group when all have ended; nothing before."""
    if group.live:
        return []
    samples = []
    for index, sample in enumerate(best_samples(group)):
        logprobs = tuple(one for held in group.held if held.sequence is sample for one in held.logprobs)
        returned = replace(sample, sampling=replace(sample.sampling, index=index))
        samples.append(_whole(returned, step, logprobs if group.tells_logprobs else ()))
    group.held.clear()
    return samples


def _whole(sample: Sequence, step: int, logprobs: tuple[TokenLogprobs, ...] = ()) -> Progress:
    """A sample that is told all at once."""
    tokens = tuple(sample.tokens[sample.prompt_length :])
    return Progress(sample, tokens, Ended(sample), step, logprobs)


def _end_unsampled(scheduler: Scheduler, batch: Batch, output: StepOutput) -> list[Ended]:
    """End the sequences of which no token could be chosen; the rest of the batch is sound."""
    ended = []
    for row in batch.rows:
        one = output.sampled.get(row.sequence.seq)
        if one is not None and one.problem and row.sequence.phase is not Phase.ENDED:
            scheduler.end(row.sequence, EndReason.FAILED)
            ended.append(Ended(row.sequence, one.problem))
    return ended
