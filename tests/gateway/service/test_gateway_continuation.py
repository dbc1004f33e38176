"""What a request has, and how it goes on: pure, with workers that are scripts."""

import itertools
from collections.abc import Iterator, Sequence

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.continuation import Continuation
from gateway.interruptions import Cause, cause_of
from gateway.logprobs import LogprobReader
from gateway.streams import FinishReason, Piece, SampleStream
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopAutomaton, StopScanner
from gateway.text.tokenizer import Tokenizer
from octavo.worker.v1 import sampling_pb2, worker_pb2
from service.errors import DETAILS_KEY, ServiceError

SEED = 99
PROMPT = [1, 2, 3]


def new_state(tokenizer: Tokenizer, samples: int, stops: Sequence[str] = (), **fields: object) -> Continuation:
    request = worker_pb2.GenerateRequest(token_ids=PROMPT, n=samples, logprobs=0, prompt_logprobs=0, **fields)  # type: ignore[arg-type]
    automaton, reader = StopAutomaton(stops), LogprobReader(tokenizer, tokenizer.special_ids)
    streams = [
        SampleStream(index, len(PROMPT), Detokenizer(tokenizer), StopScanner(automaton), reader)
        for index in range(samples)
    ]
    return Continuation(request, streams)


def told(id_: int) -> sampling_pb2.TokenLogprobs:
    return sampling_pb2.TokenLogprobs(token_id=id_, logprob=-float(id_))


def worker(
    request: worker_pb2.GenerateRequest, scripts: Sequence[Sequence[int]], sizes: Iterator[int], cached: int
) -> Iterator[worker_pb2.GenerateResponse]:
    """Says each sample's script from where it is told to go on, samples in turn, in messages of the given sizes."""
    places = [0] * len(scripts)
    for sample in request.resume.samples:
        assert request.resume.seed == SEED
        places[sample.index] = len(sample.token_ids)
        assert list(sample.token_ids) == list(scripts[sample.index][: len(sample.token_ids)])
    first = True
    while any(place < len(script) for place, script in zip(places, scripts, strict=True)):
        for index, script in enumerate(scripts):
            if places[index] == len(script):
                continue
            ids = script[places[index] : places[index] + next(sizes)]
            places[index] += len(ids)
            message = worker_pb2.GenerateResponse(index=index, token_ids=ids, logprobs=map(told, ids))
            if first:
                message.started.seed, message.started.cached_tokens = SEED, cached
                if request.HasField("prompt_logprobs"):
                    message.started.prompt_logprobs.extend(map(told, PROMPT[1:]))
                first = False
            if places[index] == len(script):
                message.finished.reason = sampling_pb2.FINISH_REASON_LENGTH
                message.finished.stats.cached_tokens = cached
            yield message


def run(
    state: Continuation, scripts: Sequence[Sequence[int]], sizes: Sequence[int], cuts: Sequence[int]
) -> list[Piece]:
    """Every piece; worker number i dies after ``cuts[i]`` messages, the last one lives."""
    pieces: list[Piece] = []
    endless = itertools.cycle(sizes)
    for number, cut in enumerate([*cuts, None]):
        for count, message in enumerate(worker(state.request(), scripts, endless, cached=number)):
            if count == cut:
                break
            if number and count == 0 and state.begun:
                state.migrated(0.5)
            piece = state.push(message, 1.0)
            pieces += [] if piece is None else [piece]
            if state.overtaken:
                break
        if state.finished:
            break
    assert state.finished
    return pieces


def of_sample(pieces: Sequence[Piece], index: int) -> tuple[object, ...]:
    """All that a client can tell of one sample, whatever pieces it came in."""
    own = [piece for piece in pieces if piece.index == index]
    finish = own[-1].finish
    assert finish is not None
    assert all(piece.finish is None for piece in own[:-1])
    return (
        "".join(piece.text for piece in own),
        [id_ for piece in own for id_ in piece.token_ids],
        [entry.token for piece in own for entry in piece.logprobs],
        (finish.reason, finish.stop_reason, finish.usage.prompt_tokens, finish.usage.completion_tokens),
    )


@pytest.mark.property
@settings(deadline=None)
@given(
    texts=st.lists(st.text(st.sampled_from("ab😀é "), min_size=1, max_size=12), min_size=1, max_size=3),
    stops=st.lists(st.text(st.sampled_from("ab😀"), min_size=1, max_size=3), max_size=2),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=7),
    cuts=st.lists(st.integers(0, 12), max_size=4),
)
def test_cut_anywhere_the_answers_are_those_of_one_worker(
    toy_tokenizer: Tokenizer, texts: list[str], stops: list[str], sizes: list[int], cuts: list[int]
) -> None:
    scripts = [toy_tokenizer.encode(text) for text in texts]
    whole = run(new_state(toy_tokenizer, len(texts), stops), scripts, sizes, [])
    cut = run(new_state(toy_tokenizer, len(texts), stops), scripts, sizes, cuts)
    for index in range(len(texts)):
        assert of_sample(cut, index) == of_sample(whole, index)
    assert [entry.token.token_id for piece in cut for entry in piece.prompt_logprobs] == PROMPT[1:]


@pytest.mark.unit
def test_usage_after_a_migration(toy_tokenizer: Tokenizer) -> None:
    # Worker 0 brings "ab" in its two messages of one token, worker 1 "cd", worker 2 the rest.
    pieces = run(new_state(toy_tokenizer, 1), [toy_tokenizer.encode("abcdef")], [1], [2, 2])
    finish = pieces[-1].finish
    assert finish is not None
    usage = finish.usage
    # The worker that began the request found 0 tokens cached, the last one 2: of prompt and answer, not of the prompt.
    assert (usage.cached_tokens, usage.completion_tokens) == (0, 6)
    assert (usage.migrations, usage.paused_seconds) == (2, 1.0)


@pytest.mark.unit
def test_a_finished_sample_has_no_part_in_later_migrations(toy_tokenizer: Tokenizer) -> None:
    scripts = [toy_tokenizer.encode("abcd"), toy_tokenizer.encode("x")]
    pieces = run(new_state(toy_tokenizer, 2), scripts, [1], [3])
    finishes = {piece.index: piece.finish for piece in pieces if piece.finish is not None}
    assert {index: finish.usage.migrations for index, finish in finishes.items()} == {0: 1, 1: 0}


@pytest.mark.unit
def test_what_nobody_began_is_asked_for_as_before(toy_tokenizer: Tokenizer) -> None:
    state = new_state(toy_tokenizer, 1)
    assert not state.request().HasField("resume")
    assert state.exact
    assert state.request().HasField("prompt_logprobs")


@pytest.mark.unit
@pytest.mark.parametrize("fields", [{"best_of": 3}, {"beam_search": worker_pb2.GenerateRequest().beam_search}])
def test_samples_chosen_at_the_end_cannot_go_on(toy_tokenizer: Tokenizer, fields: dict[str, object]) -> None:
    state = new_state(toy_tokenizer, 2, **fields)
    assert state.exact
    message = worker_pb2.GenerateResponse(index=0, token_ids=[5])
    message.started.seed = SEED
    message.finished.reason = sampling_pb2.FINISH_REASON_LENGTH
    piece = state.push(message, 1.0)
    assert piece is not None
    assert piece.finish is not None
    assert piece.finish.reason is FinishReason.LENGTH
    assert not state.exact


@pytest.mark.unit
def test_a_sample_at_its_stop_string_is_to_end_at_each_worker_once(toy_tokenizer: Tokenizer) -> None:
    state = new_state(toy_tokenizer, 2, ["b"])
    for index, text in enumerate(["ab", "c"]):
        message = worker_pb2.GenerateResponse(index=index, token_ids=toy_tokenizer.encode(text))
        message.started.seed = SEED
        state.push(message, 1.0)
    assert [state.overtakes(0), state.overtakes(0), state.overtakes(1)] == [True, False, False]
    # Another worker goes on with it from the token before its end, and has to be told in its turn.
    assert [len(sample.token_ids) for sample in state.request().resume.samples] == [1, 1]
    assert [state.overtakes(0), state.overtakes(0)] == [True, False]


@pytest.mark.unit
def test_a_sample_that_its_worker_ended_is_left_alone(toy_tokenizer: Tokenizer) -> None:
    for fields in ({}, {"best_of": 3}):
        state = new_state(toy_tokenizer, 2, ["b"], **fields)
        message = worker_pb2.GenerateResponse(index=0, token_ids=toy_tokenizer.encode("ab"))
        if not fields:  # those that are chosen at the end come whole, and cannot end alone
            message.finished.reason = sampling_pb2.FINISH_REASON_LENGTH
        state.push(message, 1.0)
        assert not state.overtakes(0)


def call_error(code: grpc.StatusCode, reason: str) -> grpc.aio.AioRpcError:
    details = ServiceError(code, "said", reason=reason).to_status().SerializeToString()
    trailing = grpc.aio.Metadata((DETAILS_KEY, details)) if reason else grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details="said")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("code", "reason", "answered", "again", "cause"),
    [
        # Nobody said a word: the connection broke, or the transport was cut.
        (grpc.StatusCode.UNAVAILABLE, "", False, False, Cause.LOST),
        (grpc.StatusCode.UNAVAILABLE, "", True, False, Cause.LOST),
        (grpc.StatusCode.CANCELLED, "", True, False, Cause.LOST),
        (grpc.StatusCode.UNAVAILABLE, "ENGINE_FAILED", True, False, Cause.LOST),
        # A worker that leaves in order.
        (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", True, False, Cause.DRAINED),
        (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", False, False, Cause.REFUSED),
        (grpc.StatusCode.UNAVAILABLE, "NOT_READY", False, False, Cause.REFUSED),
        # A full queue is told to a new request's client; one that runs already looks further.
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", False, False, None),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", False, True, Cause.REFUSED),
        (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_IN_USE", False, False, None),
        (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_IN_USE", False, True, Cause.REFUSED),
        # The request's own fault, or its client's patience.
        (grpc.StatusCode.INVALID_ARGUMENT, "NEVER_FITS", False, True, None),
        (grpc.StatusCode.INTERNAL, "STEP_FAILED", True, True, None),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", True, True, None),
    ],
)
def test_why_a_call_broke_off(
    code: grpc.StatusCode, reason: str, answered: bool, again: bool, cause: Cause | None
) -> None:
    assert cause_of(call_error(code, reason), answered=answered, again=again) is cause
