"""How many samples a request asks for, chosen how, and what each begins with."""

import math
from dataclasses import dataclass, replace

from model_worker.engine.beams import BeamSearch
from model_worker.engine.group import Group
from model_worker.engine.sequence import Sequence
from octavo.worker.v1 import sampling_pb2, worker_pb2

# What a beam search, which keeps the most likely texts of the model's own distribution, cannot heed, with the values
# that ask for nothing.
NOT_WITH_BEAMS = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "typical_p": 1.0}


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """What the caller wants of one prompt.

    Attributes:
        returned: samples the caller gets.
        generated: samples generated, of which the best are returned; beams start as one.
        begun: tokens of each sample generated elsewhere, by index.
    """

    returned: int
    generated: int
    begun: dict[int, list[int]]


def read_counts(
    request: worker_pb2.GenerateRequest, max_samples: int, room: int, vocab_size: int, problems: dict[str, str]
) -> SampleCounts:
    """The counts of a request; what is wrong with them goes to ``problems``.

    Args:
        max_samples: the most sequences of one request, which all run at once.
        room: tokens that fit the context beside the prompt.
    """
    returned = request.n if request.HasField("n") else 1
    generated = request.best_of if request.HasField("best_of") else returned
    if not 1 <= returned <= max_samples:
        problems["n"] = f"{returned}, must be 1 to {max_samples}, the most sequences that run at once"
    elif not returned <= generated <= max_samples:
        problems["best_of"] = f"{generated}, must be n, which is {returned}, to {max_samples}"
    if request.HasField("beam_search"):
        _check_beams(request, returned, max_samples, problems)
        generated = 1
    begun = {sample.index: list(sample.token_ids) for sample in request.resume.samples}
    chosen_at_end = request.HasField("beam_search") or returned < generated
    if len(begun) < len(request.resume.samples) or max(begun, default=-1) >= returned:
        problems["resume.samples"] = f"indexes must be distinct and below n, which is {returned}"
    elif begun and chosen_at_end:
        problems["resume.samples"] = "samples chosen at the end cannot be resumed"
    elif any(max(tokens, default=0) >= vocab_size for tokens in begun.values()):
        problems["resume.samples"] = f"token ids must be below the vocabulary of {vocab_size}"
    elif any(len(tokens) >= room for tokens in begun.values()):
        problems["resume.samples"] = "no room left in the context"
    return SampleCounts(returned, generated, begun)


def _check_beams(
    request: worker_pb2.GenerateRequest, returned: int, max_samples: int, problems: dict[str, str]
) -> None:
    beams, sampling = request.beam_search, request.sampling
    if not returned <= beams.width <= max_samples:
        problems["beam_search.width"] = f"{beams.width}, must be n, which is {returned}, to {max_samples}"
    if beams.HasField("length_penalty") and not math.isfinite(beams.length_penalty):
        problems["beam_search.length_penalty"] = f"{beams.length_penalty}, must be a finite number"
    if request.HasField("best_of"):
        problems["best_of"] = "a beam search returns the n best of its width"
    for name in ("logprobs", "prompt_logprobs"):
        if request.HasField(name):
            problems[name] = "not with a beam search"
    given = [
        name
        for name, neutral in NOT_WITH_BEAMS.items()
        if sampling.HasField(name) and getattr(sampling, name) != neutral
    ]
    given += [name for name in ("logit_bias", "bad_words") if getattr(sampling, name)]
    given += ["grammar"] if sampling.HasField("grammar") else []
    for name in given:
        problems[f"sampling.{name}"] = "not with a beam search"


def with_samples(first: Sequence, counts: SampleCounts, request: worker_pb2.GenerateRequest) -> Sequence:
    """The request's handle: ``first`` alone, or the first member of a group made like it."""
    prompt = first.tokens
    first.tokens = [*prompt, *counts.begun.get(0, ())]
    if request.HasField("beam_search"):
        return _with_beams(first, counts, request.beam_search)
    if counts.generated == 1:
        return first
    sampling = first.sampling
    if counts.returned < counts.generated and sampling.top_logprobs is None:
        first.sampling = sampling = replace(sampling, top_logprobs=0)  # they are ranked by log-probability
    others = [
        replace(
            first,
            tokens=[*prompt, *counts.begun.get(index, ())],
            sampling=replace(sampling, index=index),
            timeline=replace(first.timeline),
            # One list for all: whichever of them leads after a preemption goes on with it.
            prompt_logprobs=first.prompt_logprobs,
        )
        for index in range(1, counts.generated)
    ]
    group = Group([first, *others], counts.returned, tells_logprobs=request.HasField("logprobs"))
    for member in group.members:
        member.group = group
    return first


def _with_beams(first: Sequence, counts: SampleCounts, wanted: sampling_pb2.BeamSearch) -> Sequence:
    search = BeamSearch(
        width=wanted.width,
        length_penalty=wanted.length_penalty if wanted.HasField("length_penalty") else 1.0,
        early_stopping=wanted.early_stopping,
        stop=first.stop,
        max_tokens=first.limit - first.prompt_length,
    )
    first.sampling = replace(first.sampling, temperature=0.0, top_logprobs=search.candidates_per_beam)
    first.group = Group([first], counts.returned, search)
    return first
