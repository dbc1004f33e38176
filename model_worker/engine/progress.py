"""What a step brought its callers."""

from dataclasses import dataclass

from model_worker.engine.batch import Batch, Ended
from model_worker.engine.scheduler import Scheduler
from model_worker.engine.sequence import EndReason, Phase, Sequence
from model_worker.sampling.results import StepOutput, TokenLogprobs


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
    tokens = {seq: one.token for seq, one in output.sampled.items() if not one.problem}
    ended_by = {one.sequence.seq: one for one in scheduler.finish(batch, tokens, completed_step)}
    for row in batch.rows:
        sequence = row.sequence
        sequence.prompt_logprobs += output.prompt_logprobs.get(sequence.seq, ())
        end = ended_by.get(sequence.seq)
        if sequence.seq in tokens and (end is not None or sequence.phase is not Phase.ENDED):
            logprobs = output.sampled[sequence.seq].logprobs
            token = (tokens[sequence.seq],)
            progress.append(Progress(sequence, token, end, batch.step, () if logprobs is None else (logprobs,)))
    return progress


def _end_unsampled(scheduler: Scheduler, batch: Batch, output: StepOutput) -> list[Ended]:
    """End the sequences of which no token could be chosen; the rest of the batch is sound."""
    ended = []
    for row in batch.rows:
        one = output.sampled.get(row.sequence.seq)
        if one is not None and one.problem and row.sequence.phase is not Phase.ENDED:
            scheduler.end(row.sequence, EndReason.FAILED)
            ended.append(Ended(row.sequence, one.problem))
    return ended
