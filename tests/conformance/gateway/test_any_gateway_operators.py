"""OperatorService of any gateway: its workers and tenants as they are, for whom, and a drain that cuts nothing off."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from common_calls import check_health, check_not_serving, check_reflection
from operator_calls import CALLS, CANDIDATES, HELD_TOKENS, SERVICE, WINDOW, Caller, held, soon
from text_calls import Client, Texts
from wire_errors import refusal

from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.model]

PROMPT = "Once upon a time"
LIMITS = ("tokens_per_minute", "tokens_left", "concurrent_requests", "requests_per_second")


def client_of(caller: Caller, client: Client, salt: str) -> Client:
    """The same client on a caller's channel, with its key."""
    return Client(caller.texts, client.model, salt, caller.metadata)


@pytest.fixture
def own(caller: Caller, client: Client, salt: str) -> Client:
    return client_of(caller, client, salt)


@pytest.fixture
def operator(guarded: Any) -> Iterator[Caller]:
    opened = Caller(guarded.address, guarded.operator_key)
    yield opened
    opened.close()


@pytest.fixture
def tenant(guarded: Any) -> Iterator[Caller]:
    opened = Caller(guarded.address, guarded.tenant_key)
    yield opened
    opened.close()


# --- a gateway without tenants


def test_a_worker_is_told_as_it_tells_itself(caller: Caller, client: Client, channel_to: Any) -> None:
    worker = worker_pb2_grpc.WorkerServiceStub(channel_to("worker"))
    model = worker.GetModel(worker_pb2.GetModelRequest(), timeout=60)
    (found,) = soon(caller.workers, lambda workers: not any(one.samples for one in workers))
    assert (found.worker_id, found.pool) == (model.header.worker_id, model.pool)
    assert (found.model, found.max_sequences) == (client.model.id, model.max_sequences)
    assert (found.trouble, found.left_out, found.load_tokens) == ("", False, 0)
    assert found.address.rpartition(":")[2].isdigit()


def test_a_workers_load_is_told_while_it_lasts(caller: Caller, own: Client) -> None:
    with held(own, n=2):
        (busy,) = caller.workers()
    assert busy.samples == 2
    assert busy.load_tokens > 0
    (idle,) = soon(caller.workers, lambda workers: not workers[0].samples)
    assert idle.load_tokens == 0


def test_what_everybody_takes_is_counted_for_one_tenant(caller: Caller, own: Client) -> None:
    before = caller.anonymous()
    with held(own):
        assert caller.anonymous().running_calls == before.running_calls + 1
    middle = soon(caller.anonymous, lambda seen: seen.running_calls == before.running_calls)
    prompt = own.generate(PROMPT, n=2, max_tokens=5).answers[0].usage.prompt_tokens
    after = soon(caller.anonymous, lambda seen: seen.running_calls == before.running_calls)
    assert (middle.calls, after.calls) == (before.calls + 1, before.calls + 2)
    assert after.prompt_tokens == middle.prompt_tokens + prompt
    assert after.generated_tokens == middle.generated_tokens + 2 * 5
    assert (after.refused_requests, after.waiting_requests) == (before.refused_requests, 0)
    assert after.wait_seconds >= before.wait_seconds >= 0
    assert [name for name in LIMITS if after.HasField(name)] == []


def test_nobody_drains_where_nobody_is_known(caller: Caller, own: Client) -> None:
    assert refusal(lambda: caller.call("Drain"), "FAILED_PRECONDITION").reason == "NO_OPERATOR"
    assert len(own.generate(PROMPT, max_tokens=3).only.tokens) == 3


def test_the_service_can_be_found(channel_to: Any) -> None:
    channel = channel_to("gateway")
    check_health(channel, SERVICE)
    check_reflection(channel, SERVICE)


# --- with tenants


@pytest.mark.parametrize("method", CALLS)
def test_only_operators_operate(guarded: Any, operator: Caller, tenant: Caller, client: Client, method: str) -> None:
    before = operator.call("ListTenants").unauthenticated_calls
    for key in ("", "no tenant has this key"):
        stranger = Caller(guarded.address, key)
        refusal(lambda stranger=stranger: stranger.call(method), "UNAUTHENTICATED")
        stranger.close()
    assert refusal(lambda: tenant.call(method), "PERMISSION_DENIED").reason == "OPERATORS_ONLY"
    assert operator.call("ListTenants").unauthenticated_calls == before + 2
    # Nothing was done for those who were refused.
    check_health(operator.channel, SERVICE)
    assert len(client_of(tenant, client, "").generate(PROMPT, max_tokens=3).only.tokens) == 3


def test_tenants_are_told_apart(operator: Caller, tenant: Caller, client: Client, salt: str) -> None:
    before = operator.tenants()
    assert list(before) == sorted(before)
    usage = client_of(tenant, client, salt).generate(PROMPT, max_tokens=7).only.usage
    after = soon(operator.tenants, lambda seen: not any(one.running_calls for one in seen.values()))
    assert after.keys() == before.keys()
    (caller,) = [name for name in after if after[name].calls != before[name].calls]
    (boss,) = [name for name in after if after[name].operator]
    assert caller != boss
    assert after[caller].calls == before[caller].calls + 1
    assert after[caller].prompt_tokens == before[caller].prompt_tokens + usage.prompt_tokens
    assert after[caller].generated_tokens == before[caller].generated_tokens + 7
    # What others took did not change by it.
    after[boss].ClearField("tokens_left")
    before[boss].ClearField("tokens_left")
    assert after[boss] == before[boss]


def test_a_limit_is_told_and_holds(operator: Caller, tenant: Caller, client: Client, salt: str) -> None:
    asking = client_of(tenant, client, salt)
    calls = {name: one.calls for name, one in operator.tenants().items()}
    asking.generate(PROMPT, max_tokens=1)
    (before,) = [one for one in operator.tenants().values() if one.calls != calls[one.tenant]]
    if before.concurrent_requests not in range(1, 9):
        pytest.skip("the tenant of --tenant-key has no concurrent_requests of 8 or less")

    def now() -> Any:
        return operator.tenants()[before.tenant]

    soon(now, lambda seen: not seen.running_calls)
    with ExitStack() as running:
        for _ in range(before.concurrent_requests):
            running.enter_context(held(asking))
        assert now().running_calls == before.concurrent_requests
        found = refusal(lambda: asking.generate(PROMPT, max_tokens=3), "RESOURCE_EXHAUSTED")
        assert found.retry_seconds is not None
        assert found.retry_seconds > 0
        assert now().refused_requests == before.refused_requests + 1
        assert before.HasField("tokens_left") == before.HasField("tokens_per_minute")
        assert now().tokens_left <= before.tokens_per_minute
    soon(now, lambda seen: not seen.running_calls)
    assert len(asking.generate(PROMPT, max_tokens=3).only.tokens) == 3


def test_a_worker_that_cannot_be_used_is_told_with_the_reason(operator: Caller, client: Client) -> None:
    workers = operator.workers()
    assert [one.address for one in workers] == sorted(one.address for one in workers)
    usable = [one for one in workers if not one.trouble]
    assert all(one.worker_id and one.model and one.pool for one in usable)
    assert client.model.id in {one.model for one in usable}
    if len(usable) == len(workers):
        pytest.skip("every worker of --guarded-gateway can be used")
    assert not any(one.samples for one in workers if one.trouble)


def test_a_drain_refuses_what_is_new_and_cuts_nothing_off(leaving: Any, client: Client, salt: str) -> None:
    operator, tenant = Caller(leaving.address, leaving.operator_key), Caller(leaving.address, leaving.tenant_key)
    asking = client_of(tenant, client, salt)
    with held(asking) as stream:
        assert operator.call("Drain").running_calls == 1
        check_not_serving(operator.channel, SERVICE)
        assert refusal(lambda: asking.generate(PROMPT, max_tokens=3), "UNAVAILABLE").reason == "SHUTTING_DOWN"
        # Told again, it says the same: what runs is neither cut off nor forgotten.
        assert operator.call("Drain").running_calls == 1
        rest = list(stream)
    assert sum(message.ByteSize() for message in rest) > 3 * WINDOW, "it may have been over before the drain"
    assert rest[-1].usage.completion_tokens == HELD_TOKENS
    assert all(len(entry.top) == CANDIDATES for message in rest for entry in message.logprobs)
    assert soon(lambda: operator.call("Drain").running_calls, lambda running: not running) == 0
    # It holds: nothing that ends makes the gateway take requests again.
    assert refusal(lambda: asking.generate(PROMPT, max_tokens=3), "UNAVAILABLE").reason == "SHUTTING_DOWN"
    assert any(not one.trouble for one in operator.workers())
    for one in (operator, tenant):
        one.close()


def test_a_held_answer_is_larger_than_what_is_sent_unread(own: Client) -> None:
    """What the tests above rely on, held against the model under test."""
    texts = Texts(own.open(PROMPT, max_tokens=HELD_TOKENS, logprobs=CANDIDATES))
    assert sum(message.ByteSize() for message in texts.messages) > 4 * WINDOW
