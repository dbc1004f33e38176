"""How many samples a request may ask for: every wrong count is named, and so is what a beam search cannot heed."""

from typing import Any

import pytest

from model_worker.engine.sequence import Sequence
from model_worker.requests import ModelLimits, RequestReader
from octavo.worker.v1 import sampling_pb2, worker_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit

Beams = sampling_pb2.BeamSearch
Sampling = sampling_pb2.SamplingParams


def read(**fields: Any) -> Sequence:
    reader = RequestReader(ModelLimits(vocab_size=100, max_context=64, eos_token_ids=frozenset({2}), max_samples=8))
    return reader.read(worker_pb2.GenerateRequest(**{"token_ids": [1, 2, 3], **fields}))


def resume(*samples: tuple[int, list[int]]) -> worker_pb2.Resume:
    return worker_pb2.Resume(
        seed=1, samples=[worker_pb2.ResumedSample(index=index, token_ids=ids) for index, ids in samples]
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 9}, "best_of"),
        ({"n": 3, "beam_search": Beams(width=2)}, "beam_search.width"),
        ({"beam_search": Beams(width=9)}, "beam_search.width"),
        ({"beam_search": Beams(width=0)}, "beam_search.width"),
        ({"beam_search": Beams(width=2, length_penalty=float("nan"))}, "beam_search.length_penalty"),
        ({"beam_search": Beams(width=2), "best_of": 2}, "best_of"),
        ({"beam_search": Beams(width=2), "logprobs": 1}, "logprobs"),
        ({"beam_search": Beams(width=2), "sampling": Sampling(repetition_penalty=1.1)}, "sampling.repetition_penalty"),
        ({"beam_search": Beams(width=2), "sampling": Sampling(logit_bias={1: 1.0})}, "sampling.logit_bias"),
        ({"beam_search": Beams(width=2), "resume": resume((0, [5]))}, "resume.samples"),
        ({"best_of": 2, "resume": resume((0, [5]))}, "resume.samples"),
        ({"n": 2, "resume": resume((2, [5]))}, "resume.samples"),
        ({"n": 2, "resume": resume((1, [5]), (1, [6]))}, "resume.samples"),
        ({"n": 2, "resume": resume((1, [100]))}, "resume.samples"),
        ({"n": 2, "resume": resume((1, [5] * 61))}, "resume.samples"),
    ],
)
def test_a_wrong_count_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ServiceError) as refused:
        read(**fields)
    assert named in refused.value.fields


def test_the_largest_counts_are_allowed() -> None:
    group = read(n=8, best_of=8).group
    assert group is not None
    assert [one.sampling.index for one in group.members] == list(range(8))
    assert not group.chosen_at_end
    beams = read(n=8, beam_search=Beams(width=8)).group
    assert beams is not None
    assert beams.search is not None
    # Two stop tokens would need 3 x 8 candidates; the one there is needs 2 x 8.
    assert (beams.search.width, beams.search.candidates_per_beam, beams.returned) == (8, 16, 8)
    neutral = Sampling(repetition_penalty=1, presence_penalty=0, frequency_penalty=0, typical_p=1)
    assert read(beam_search=Beams(width=2), sampling=neutral).group is not None


def test_one_sample_is_no_group() -> None:
    assert read().group is None
    assert read(n=1, best_of=1).group is None


def test_resumed_samples_begin_where_they_were() -> None:
    group = read(n=3, resume=resume((2, [7, 8]), (0, [9]))).group
    assert group is not None
    assert [one.tokens[3:] for one in group.members] == [[9], [], [7, 8]]
    assert {one.sampling.seed for one in group.members} == {1}


def test_more_prompt_logprobs_than_a_message_holds_are_refused_before_anything_runs() -> None:
    """Ids of three bytes: an entry takes 9, 11 for each of the 20 beside it, and 3 in its list: 64 MiB hold 289,000."""
    reader = RequestReader(
        ModelLimits(vocab_size=150_000, max_context=400_000, eos_token_ids=frozenset(), max_samples=8)
    )
    for tokens, top, refused in ((285_000, 20, False), (290_000, 20, True), (290_000, 0, False)):
        request = worker_pb2.GenerateRequest(token_ids=[149_999] * tokens, prompt_logprobs=top)
        if refused:
            with pytest.raises(ServiceError) as caught:
                reader.read(request)
            assert list(caught.value.fields) == ["prompt_logprobs"]
        else:
            sequence = reader.read(request)
            assert sequence.sampling.prompt_logprobs == top
