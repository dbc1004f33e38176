"""How requests end before their time, and what a worker tells of itself."""

import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from common_calls import check_health, check_reflection, wait_not_serving
from pool_view import PoolView
from wire_errors import refusal
from worker_calls import PATIENCE_SECONDS, Answer, Asker

from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model]

SERVICE = "octavo.worker.v1.WorkerService"
# Read to the end, or of an endless stream.
SOME = 200


def abort(asker: Asker, name: str) -> bool:
    return asker.stub.Abort(worker_pb2.AbortRequest(request_id=name), timeout=PATIENCE_SECONDS).found


def test_an_aborted_request_ends_every_sample_and_gives_its_blocks_back(asker: Asker, pool: PoolView) -> None:
    stream = asker.open(asker.prompt(40), asker.endless, n=2, request_id="conformance-abort")
    messages = [next(stream)]
    assert pool.held() > 0
    assert abort(asker, "conformance-abort")
    answer = Answer([*messages, *stream])
    pool.check_free_soon()
    assert {sample.reason for sample in answer.samples.values()} == {"ABORTED"}
    assert sorted(answer.samples) == [0, 1]
    assert not abort(asker, "conformance-abort")
    assert not abort(asker, "conformance-never-was")


def test_some_samples_end_and_the_others_go_on(asker: Asker, pool: PoolView) -> None:
    stream = asker.open(asker.prompt(), asker.endless, n=3, request_id="conformance-some")
    answer = Answer([next(stream)])
    request = worker_pb2.AbortSamplesRequest(request_id="conformance-some", indexes=[1])
    assert asker.stub.AbortSamples(request, timeout=PATIENCE_SECONDS).found
    while answer.samples[1].finished is None:
        answer.take(next(stream))
    assert answer.samples[1].reason == "ABORTED"
    others = [answer.samples[index] for index in (0, 2)]
    wanted = [len(sample.tokens) + SOME for sample in others]
    while any(len(sample.tokens) < length for sample, length in zip(others, wanted, strict=True)):
        answer.take(next(stream))
    assert [sample.finished for sample in others] == [None, None]
    stream.cancel()
    pool.check_free_soon()
    request.request_id = "conformance-never-was"
    assert not asker.stub.AbortSamples(request, timeout=PATIENCE_SECONDS).found


def cancel(asker: Asker) -> None:
    stream = asker.open(asker.prompt(40), asker.endless)
    next(stream)
    stream.cancel()


def cancel_early(asker: Asker) -> None:
    asker.open(asker.prompt(40), asker.endless).cancel()


def let_the_deadline_pass(asker: Asker) -> None:
    stream = asker.stub.Generate(asker.request(asker.prompt(40), asker.endless), timeout=0.25)
    refusal(lambda: list(stream), "DEADLINE_EXCEEDED")


@pytest.mark.parametrize("leave", [cancel, cancel_early, let_the_deadline_pass])
def test_a_caller_that_leaves_leaves_nothing(asker: Asker, pool: PoolView, leave: Callable[[Asker], None]) -> None:
    leave(asker)
    pool.check_free_soon()
    asker.settled()


def test_a_finished_request_leaves_its_blocks_for_the_next(asker: Asker, pool: PoolView) -> None:
    ids = asker.prompt(3 * asker.model.block_size)
    asker.ask(ids, n=2)
    pool.check_free_soon()
    assert pool.summary().stats.cached_blocks >= 3


def test_the_manager_knows_the_pool_as_the_worker_tells_it(asker: Asker, pool: PoolView) -> None:
    model, spec = asker.model, pool.summary().spec
    assert (spec.pool, spec.worker_id) == (model.pool, model.header.worker_id)
    assert (spec.num_blocks, spec.block_size, spec.block_bytes) == (
        model.num_blocks,
        model.block_size,
        model.block_bytes,
    )
    assert spec.model_fingerprint == model.model_fingerprint != ""
    stats = asker.stats()
    assert (stats.num_blocks, stats.epoch) == (model.num_blocks, pool.summary().header.epoch)


def test_the_model_is_described(asker: Asker) -> None:
    model = asker.model
    assert model.model
    assert model.vocab_size > max(model.eos_token_ids, default=0)
    assert model.max_context > 1
    assert model.max_batch_tokens >= model.max_sequences >= 1
    assert model.dtype
    assert model.kv_dtype
    assert model.device


def test_health_and_reflection(channel_to: Any) -> None:
    channel: grpc.Channel = channel_to("worker")
    check_health(channel, SERVICE)
    check_reflection(channel, SERVICE)
    stats = worker_pb2_grpc.WorkerServiceStub(channel).GetStats(worker_pb2.GetStatsRequest(), timeout=PATIENCE_SECONDS)
    assert stats.ready
    assert stats.state


def test_a_drained_worker_finishes_what_runs_and_takes_nothing_new(draining_worker: str, salt: str) -> None:
    with grpc.insecure_channel(draining_worker) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        asker = Asker(stub, stub.GetModel(worker_pb2.GetModelRequest(), timeout=PATIENCE_SECONDS), salt)
        # The one surely runs when the worker is drained; the other may end before, and if not ends as it would have.
        endless = asker.open(asker.prompt(), asker.endless, request_id="conformance-drained")
        running = Answer([next(endless)])
        stream = asker.open(asker.prompt(), SOME)
        messages = [next(stream)]
        assert stub.Drain(worker_pb2.DrainRequest(), timeout=PATIENCE_SECONDS).live_requests in (1, 2)
        found = refusal(lambda: asker.ask(asker.prompt()), "UNAVAILABLE")
        assert found.reason == "NOT_READY"
        assert found.retry_seconds is not None
        assert not asker.stats().ready
        wait_not_serving(channel, SERVICE)
        answer = Answer([*messages, *stream])
        assert (answer.only.reason, len(answer.tokens)) == ("LENGTH", SOME)
        assert stub.Drain(worker_pb2.DrainRequest(), timeout=PATIENCE_SECONDS).live_requests in (1, 2)
        while len(running.tokens) < SOME:
            running.take(next(endless))
        assert running.only.finished is None
        assert abort(asker, "conformance-drained")
        # Who has ended lives until its worker has closed the stream.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while stub.Drain(worker_pb2.DrainRequest(), timeout=PATIENCE_SECONDS).live_requests:
            assert time.monotonic() < deadline
