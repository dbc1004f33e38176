"""The rules of the wire (design 3.5): steps, replays, epochs, validation, streams."""

import grpc
import pytest
from kv_fake_worker import admit, copies, fresh, grants

from octavo.kv.v1 import attach_pb2, common_pb2, inspect_pb2, lookup_pb2, steps_pb2


def test_the_same_bytes_get_the_same_answer_without_a_second_effect(attach):
    """Rule 1: the step is the idempotency key."""
    worker = attach(num_blocks=10)
    worker.admit(1, fresh(6, 1))
    request = worker.request(forks=[(1, [2], 6)], advances={1: 7, 2: 7}, admits=[admit(3, fresh(4, 100))])
    answer = worker.send(request)
    assert copies(answer) == [(2, 3)]
    before = worker.state_digest()
    assert worker.stub.Step(request) == answer
    assert worker.state_digest() == before


def test_other_bytes_under_an_answered_step_are_a_conflict(attach, refused):
    worker = attach(num_blocks=10)
    request = worker.request(admits=[admit(1, fresh(6, 1))])
    worker.send(request)
    before = worker.state_digest()
    request.admits[0].priority = 1
    with refused("ALREADY_EXISTS", "STEP_CONFLICT"):
        worker.stub.Step(request)
    assert worker.state_digest() == before


@pytest.mark.parametrize("step", [0, 1, 4, 2**63])
def test_a_step_out_of_turn_names_the_expected_one(attach, refused, step):
    worker = attach(num_blocks=10)
    worker.step()
    worker.step()
    before = worker.state_digest()
    request = worker.request()
    request.step = step
    request.completed_step = 0
    with refused("FAILED_PRECONDITION", "WRONG_STEP") as info:
        worker.stub.Step(request)
    assert info.metadata["expected_step"] == "3"
    assert worker.state_digest() == before


def test_a_pool_continues_at_the_step_its_worker_names(attach):
    worker = attach(num_blocks=10, step=41)
    assert worker.answer.header.step == 41
    assert worker.step().header.step == 42


@pytest.mark.scenario("B53")
def test_a_late_release_of_an_old_attempt_changes_nothing(attach, refused):
    old = attach(pool="taken over", num_blocks=10, worker_id="A")
    old.admit(7, fresh(6, 1))
    late = old.request(releases=[7])
    new = attach(pool="taken over", num_blocks=10, worker_id="B")
    assert new.epoch > old.epoch
    new.admit(7, fresh(6, 1))
    before = new.state_digest()
    with refused("FAILED_PRECONDITION", "STALE_EPOCH") as info:
        old.stub.Step(late)
    assert info.metadata["expected_epoch"] == str(new.epoch)
    with refused("FAILED_PRECONDITION", "STALE_EPOCH"):
        old.stub.Detach(attach_pb2.DetachRequest(pool=old.pool, epoch=old.epoch))
    assert new.state_digest() == before
    assert new.ref_counts(1, 2) == [1, 1]
    old.attached = False


def test_an_epoch_nobody_was_given_is_refused_too(attach, refused):
    """A worker that has mixed its pools up, or the messages of a manager whose clock ran ahead."""
    worker = attach(num_blocks=10)
    before = worker.state_digest()
    request = worker.request()
    request.epoch = worker.epoch + 1
    with refused("FAILED_PRECONDITION", "STALE_EPOCH") as info:
        worker.stub.Step(request)
    assert info.metadata["expected_epoch"] == str(worker.epoch)
    assert worker.state_digest() == before


def test_a_new_worker_finds_none_of_the_old_digests(attach):
    old = attach(pool="replaced", num_blocks=10, worker_id="A")
    old.admit(1, fresh(8, 1))
    old.step()
    assert old.matched(fresh(8, 1)) == 7
    old.attached = False
    new = attach(pool="replaced", num_blocks=10, worker_id="B")
    assert new.matched(fresh(8, 1)) == 0
    assert new.available() == 10


def test_a_detached_pool_is_unknown(attach, refused):
    worker = attach(num_blocks=10)
    worker.admit(1, fresh(8, 1))
    assert worker.detach().dropped_sequences == 1
    for call, request in (
        (worker.stub.Step, worker.request()),
        (worker.stub.InspectPool, inspect_pb2.InspectPoolRequest(pool=worker.pool)),
        (worker.stub.MatchPrefix, lookup_pb2.MatchPrefixRequest(pools=[worker.pool], token_ids=bytes(4))),
        (worker.stub.CanAdmit, lookup_pb2.CanAdmitRequest(pool=worker.pool, token_ids=bytes(4))),
    ):
        with refused("NOT_FOUND", "POOL_NOT_FOUND"):
            call(request)


BAD_ITEMS = {
    "commit of nobody": ("UNKNOWN_SEQUENCE", {"commits": {9: (0, [1])}}),
    "commit from elsewhere": ("WRONG_COMMIT_START", {"commits": {1: (7, [1])}}),
    "commit of nothing": ("OUT_OF_RANGE", {"commits": {1: (6, [])}}),
    "commit beyond the table": ("OUT_OF_RANGE", {"commits": {1: (6, [1, 2, 3])}}),
    "fork of nobody": ("UNKNOWN_SEQUENCE", {"forks": [(9, [10], 1)]}),
    "fork into nobody": ("EMPTY", {"forks": [(1, [], 6)]}),
    "fork beyond the parent": ("OUT_OF_RANGE", {"forks": [(1, [3], 9)]}),
    "fork into a live one": ("SEQUENCE_EXISTS", {"forks": [(1, [2], 6)]}),
    "fork twice into one": ("SEQUENCE_EXISTS", {"forks": [(1, [3, 3], 6)]}),
    "release of nobody": ("UNKNOWN_SEQUENCE", {"releases": [9]}),
    "release of 0": ("UNKNOWN_SEQUENCE", {"releases": [0]}),
    "release twice": ("DUPLICATE_SEQUENCE", {"releases": [1, 1]}),
    "advance of nobody": ("UNKNOWN_SEQUENCE", {"advances": {9: 1}}),
    "advance of one released here": ("UNKNOWN_SEQUENCE", {"releases": [1], "advances": {1: 7}}),
    "advance by nothing": ("OUT_OF_RANGE", {"advances": {1: 6}}),
    "advance of nothing": ("OUT_OF_RANGE", {"advances": {1: 0}}),
    "advance not beyond the fork": ("OUT_OF_RANGE", {"forks": [(1, [3], 7)], "advances": {1: 7}}),
    "advance not beyond the commit": ("OUT_OF_RANGE", {"commits": {1: (6, [1])}, "advances": {1: 7}}),
    "admit of a live one": ("SEQUENCE_EXISTS", {"admits": [admit(1, [1])]}),
    "admit again of a live one": ("SEQUENCE_EXISTS", {"admits": [admit(1, [1], again=True)]}),
    "admit of an old one": ("STALE_SEQUENCE_ID", {"releases": [1], "admits": [admit(1, [1])]}),
    "admit of 0": ("SEQUENCE_EXISTS", {"admits": [admit(0, [1])]}),
    "admit above which no id is left": ("OUT_OF_RANGE", {"admits": [admit(2**63, [1])]}),
    "admit again above it": ("OUT_OF_RANGE", {"admits": [admit(2**64 - 1, [1], again=True)]}),
    "fork into an id above which none is left": ("OUT_OF_RANGE", {"forks": [(1, [3, 2**63], 6)]}),
    "admit twice": ("DUPLICATE_SEQUENCE", {"admits": [admit(9, [1]), admit(9, [1])]}),
    "admit of nothing": ("EMPTY", {"admits": [admit(9, [], num_tokens=1)]}),
    "admit of half a token": (
        "MALFORMED_TOKENS",
        {"admits": [steps_pb2.Admit(seq=9, token_ids=b"abcdef", num_tokens=1)]},
    ),
    "admit that computes nothing": ("OUT_OF_RANGE", {"admits": [admit(9, [1], num_tokens=0)]}),
    "admits of one group that rank apart": (
        "WRONG_GROUP",
        {"admits": [admit(9, [1], group=9, arrival=1), admit(10, [1], group=9, arrival=2)]},
    ),
    "admit to a group of another rank": ("WRONG_GROUP", {"admits": [admit(9, [1], group=1, arrival=9)]}),
    "admit to a group of another tenant": (
        "WRONG_GROUP",
        {"admits": [admit(9, [1], group=1, arrival=1, root=common_pb2.PrefixRoot(tenant="other"))]},
    ),
    "admit beside a child of another rank": (
        "WRONG_GROUP",
        {"forks": [(1, [3], 6)], "releases": [1], "admits": [admit(9, [1], group=1, arrival=9)]},
    ),
    "admit that is named as a group of another rank": (
        "WRONG_GROUP",
        {"forks": [(1, [3], 6)], "releases": [1], "admits": [admit(1, [1], arrival=9, again=True)]},
    ),
    "completed in the future": ("OUT_OF_RANGE", {"completed": 3}),
    "completed step falls": ("OUT_OF_RANGE", {"completed": 0}),
    "rates below zero": ("OUT_OF_RANGE", {"rates": {"prefill_tokens_per_second": -1.0, "copy_bytes_per_second": 1.0}}),
    "rates without end": (
        "OUT_OF_RANGE",
        {"rates": {"prefill_tokens_per_second": 1.0, "copy_bytes_per_second": 1e400}},
    ),
}


@pytest.mark.scenario("alloc-08-zero-tokens")
@pytest.mark.parametrize("case", BAD_ITEMS)
def test_one_bad_item_refuses_the_request_without_effect(attach, refused, case):
    """Rule 2: a good item before and after the bad one must leave no trace either."""
    reason, items = BAD_ITEMS[case]
    worker = attach(num_blocks=20)
    worker.step(admits=[admit(1, fresh(6, 1)), admit(2, fresh(6, 1))])
    worker.step()
    before = worker.state_digest()
    items = dict(items)
    items["admits"] = [admit(100, fresh(5, 900)), *items.get("admits", []), admit(101, fresh(5, 950))]
    items["releases"] = [2, *items.get("releases", [])]
    with refused("INVALID_ARGUMENT", reason):
        worker.step(**items)
    assert worker.state_digest() == before
    assert list(grants(worker.admit(3, fresh(2, 500)))) == [3]


def test_columns_must_be_equally_long(attach, refused):
    worker = attach(num_blocks=20)
    worker.admit(1, fresh(6, 1))
    for column in ("commits.starts", "commits.counts", "commits.seqs", "advances.seqs", "advances.num_tokens"):
        request = worker.request()
        table, name = column.split(".")
        getattr(getattr(request, table), name).append(1)
        with refused("INVALID_ARGUMENT", "UNEQUAL_COLUMNS"):
            worker.stub.Step(request)
    request = worker.request(commits={1: (6, [1])})
    request.commits.token_ids += b"\0"
    with refused("INVALID_ARGUMENT", "MALFORMED_TOKENS"):
        worker.stub.Step(request)
    request = worker.request()
    request.advances.seqs.extend([1, 1])
    request.advances.num_tokens.extend([7, 8])
    with refused("INVALID_ARGUMENT", "DUPLICATE_SEQUENCE"):
        worker.stub.Step(request)


def test_a_child_commits_nothing_of_its_own_before_it_advances(attach, refused):
    worker = attach(num_blocks=20)
    worker.admit(1, fresh(6, 1))
    worker.step(forks=[(1, [2], 6)])
    with refused("INVALID_ARGUMENT", "NOT_ADVANCED"):
        worker.step(commits={2: (6, [50])})
    worker.step(advances={2: 7})
    worker.step(commits={2: (6, [50])})


BAD_POOLS = {
    "no name": {"pool": ""},
    "long name": {"pool": "x" * 257},
    "no worker": {"worker_id": ""},
    "no blocks": {"num_blocks": 0},
    "absurdly many blocks": {"num_blocks": 2**32 - 1},
    "no block size": {"block_size": 0},
    "watermark as large as the pool": {"watermark_blocks": 20},
    "no regime": {"reuse_regime": 0},
    "rates of zero": {"rates": {"prefill_tokens_per_second": 0.0, "copy_bytes_per_second": 1.0}},
}


@pytest.mark.parametrize("case", BAD_POOLS)
def test_a_bad_pool_is_refused(attach, refused, case):
    code = "UNSPECIFIED" if case == "no regime" else "OUT_OF_RANGE" if case == "rates of zero" else "INVALID_FIELD"
    with refused("INVALID_ARGUMENT", code):
        attach(**{"num_blocks": 20} | BAD_POOLS[case])


def test_attach_starts_with_the_pool(stub, refused):
    for parts in ([], [attach_pb2.AttachRequest()], [attach_pb2.AttachRequest(sequences=attach_pb2.LiveSequences())]):
        with refused("INVALID_ARGUMENT", "INVALID_FIELD"):
            stub.Attach(iter(parts))


def test_questions_check_their_arguments(attach, refused):
    worker = attach(num_blocks=10)
    with refused("INVALID_ARGUMENT", "EMPTY"):
        worker.matched([])
    with refused("INVALID_ARGUMENT", "EMPTY"):
        worker.can_admit([])
    for count in (0, 65_537):
        with refused("INVALID_ARGUMENT", "OUT_OF_RANGE"):
            worker.stub.InspectBlocks(inspect_pb2.InspectBlocksRequest(pool=worker.pool, count=count))
    with refused("NOT_FOUND", "SEQUENCE_NOT_FOUND"):
        worker.stub.InspectSequence(inspect_pb2.InspectSequenceRequest(pool=worker.pool, seq=1))


def test_a_stream_answers_like_single_steps(attach):
    worker = attach(num_blocks=10)
    requests = [worker.request(admits=[admit(1, fresh(6, 1))])]
    worker.step_number = 1
    requests.append(worker.request(forks=[(1, [2], 6)], advances={1: 7, 2: 7}))
    answers = list(worker.stub.Steps(iter(requests)))
    assert [answer.header.step for answer in answers] == [1, 2]
    assert copies(answers[1]) == [(2, 3)]
    # The stream broke and the worker resends the last bytes on another.
    assert list(worker.stub.Steps(iter(requests[1:]))) == answers[1:]


def test_an_open_stream_shows_as_connected(attach):
    worker = attach(num_blocks=10)
    answers = worker.stub.Steps(iter([worker.request()]), timeout=30)
    next(answers)
    worker.step_number = 1
    assert list(answers) == []
    assert not worker.summary().connected


def test_a_stream_belongs_to_one_pool(attach, refused):
    one, other = attach(num_blocks=10), attach(num_blocks=10)
    with refused("INVALID_ARGUMENT", "STREAM_OF_ANOTHER_POOL"):
        list(one.stub.Steps(iter([one.request(), other.request()])))
    one.step_number = 1


def test_messages_up_to_64_mib_are_taken(attach, target):
    """A prompt of fifteen million tokens, 60 MB, can never fit and is told so; one byte over the limit is refused."""
    worker = attach(num_blocks=10)
    with grpc.insecure_channel(target, [("grpc.max_send_message_length", -1)]) as channel:
        step = channel.unary_unary(
            "/octavo.kv.v1.KvManagerService/Step",
            request_serializer=steps_pb2.StepRequest.SerializeToString,
            response_deserializer=steps_pb2.StepResponse.FromString,
        )
        huge = worker.request(admits=[steps_pb2.Admit(seq=1, token_ids=bytes(60_000_000), num_tokens=1)])
        answer = step(huge)
        assert answer.rejected[0].needed == 15_000_001 // 4 + 1
        worker.step_number = 1
        with pytest.raises(grpc.RpcError) as caught:
            step(worker.request(admits=[steps_pb2.Admit(seq=2, token_ids=bytes(64 * 1024 * 1024), num_tokens=1)]))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert worker.available() == 10
