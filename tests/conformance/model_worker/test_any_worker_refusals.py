"""What a worker refuses: the code, the reason, the field by its path, and that nothing runs."""

from typing import Any

import grpc
import pytest
from common_calls import check_unknown_calls
from wire_errors import refusal
from worker_calls import Asker

from octavo.worker.v1 import sampling_pb2, worker_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.model]

SERVICE = "octavo.worker.v1.WorkerService"
Grammar, TokenIds = sampling_pb2.Grammar, sampling_pb2.TokenIds

# Bounds that the protos' comments give.
BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("stop.max_tokens", {"stop": {"max_tokens": 0}}),
    ("sampling.temperature", {"sampling": {"temperature": -1.0}}),
    ("sampling.temperature", {"sampling": {"temperature": float("nan")}}),
    ("sampling.top_p", {"sampling": {"top_p": 0.0}}),
    ("sampling.top_p", {"sampling": {"top_p": 1.5}}),
    ("sampling.min_p", {"sampling": {"min_p": -0.1}}),
    ("sampling.typical_p", {"sampling": {"typical_p": 0.0}}),
    ("sampling.repetition_penalty", {"sampling": {"repetition_penalty": 0.0}}),
    ("sampling.presence_penalty", {"sampling": {"presence_penalty": 2.5}}),
    ("sampling.frequency_penalty", {"sampling": {"frequency_penalty": -2.5}}),
    ("sampling.logit_bias", {"sampling": {"logit_bias": {0: 101.0}}}),
    ("sampling.bad_words", {"sampling": {"bad_words": [TokenIds()]}}),
    ("sampling.grammar", {"sampling": {"grammar": Grammar(regex="(")}, "stop": {"ignore_eos": False}}),
    ("n", {"n": 0}),
    ("best_of", {"n": 2, "best_of": 1}),
    ("beam_search.width", {"beam_search": sampling_pb2.BeamSearch(width=0)}),
    ("logprobs", {"logprobs": 21}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("request_id", {"request_id": "x" * 129}),
    ("resume.samples", {"resume": worker_pb2.Resume(samples=[worker_pb2.ResumedSample(index=1)])}),
    ("resume.samples", {"resume": worker_pb2.Resume(samples=[worker_pb2.ResumedSample(token_ids=[1] * 8)])}),
]


@pytest.mark.parametrize(("field", "wrong"), BAD_FIELDS, ids=[field for field, _ in BAD_FIELDS])
def test_a_wrong_field_is_named_and_nothing_runs(asker: Asker, field: str, wrong: dict[str, Any]) -> None:
    before = asker.stats().prompt_tokens
    found = refusal(lambda: asker.ask(asker.prompt(), **wrong), "INVALID_ARGUMENT")
    assert list(found.fields) == [field]
    assert field in found.message
    assert asker.stats().prompt_tokens == before


def test_all_wrong_fields_are_named_at_once(asker: Asker) -> None:
    wrong = {"sampling": {"top_p": 2.0}, "n": 0}
    assert refusal(lambda: asker.ask([], **wrong), "INVALID_ARGUMENT").fields.keys() == {
        "token_ids",
        "sampling.top_p",
        "n",
    }


def test_a_prompt_has_a_token_of_the_vocabulary_and_room_for_one_more(asker: Asker) -> None:
    model = asker.model
    for ids in ([], [model.vocab_size], [1] * model.max_context):
        found = refusal(lambda ids=ids: asker.ask(ids), "INVALID_ARGUMENT")
        assert list(found.fields) == ["token_ids"]
    # The longest one that fits: test_without_max_tokens_a_sample_goes_to_the_end_of_the_context.
    assert len(asker.ask([1]).tokens) >= 1


def test_a_name_that_is_in_use_is_refused(asker: Asker) -> None:
    stream = asker.open(asker.prompt(), asker.endless, request_id="conformance-twice")
    next(stream)
    found = refusal(lambda: asker.ask(asker.prompt(), request_id="conformance-twice"), "ALREADY_EXISTS")
    assert found.reason == "REQUEST_ID_IN_USE"
    stream.cancel()


def test_samples_to_end_must_be_there_and_their_own_masters(asker: Asker) -> None:
    def end(*indexes: int) -> None:
        request = worker_pb2.AbortSamplesRequest(request_id="conformance-chosen", indexes=indexes)
        asker.stub.AbortSamples(request, timeout=60)

    assert list(refusal(end, "INVALID_ARGUMENT").fields) == ["indexes"]
    stream = asker.open(asker.prompt(), asker.endless, n=2, best_of=3, request_id="conformance-chosen")
    while asker.stats().running_requests == 0:
        assert stream.is_active()
    assert list(refusal(lambda: end(2), "INVALID_ARGUMENT").fields) == ["indexes"]
    refusal(lambda: end(1), "FAILED_PRECONDITION")
    stream.cancel()


def test_what_is_no_call_and_what_is_no_message(channel_to: Any) -> None:
    channel: grpc.Channel = channel_to("worker")
    check_unknown_calls(channel, SERVICE)
