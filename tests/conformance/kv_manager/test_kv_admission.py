"""Who is admitted: watermark, ranks, prompts that never fit, drained pools."""

import pytest
from kv_fake_worker import admit, fresh, grants, waiting

from octavo.kv.v1 import kv_manager_pb2, lookup_pb2


@pytest.mark.scenario("watermark-01")
def test_the_watermark_binds_admissions_while_somebody_runs(attach):
    worker = attach(num_blocks=10, watermark_blocks=3)
    worker.admit(1, fresh(16, 1))
    worker.admit(2, fresh(12, 100))
    assert worker.tables == {1: [1, 2, 3, 4], 2: [5, 6, 7]}
    response = worker.admit(3, fresh(4, 200))
    assert (waiting(response), response.waiting[0].needed) == ({3: "POOL"}, 4)  # one block and the watermark, of three
    worker.step(advances={1: 17})
    assert worker.tables[1][-1] == 8  # growth goes below the watermark
    # Ours: alone means that nobody runs at all, so the last step comes after both have ended.
    worker.step(releases=[1, 2])
    assert 3 in grants(worker.admit(3, fresh(4, 200)))


@pytest.mark.scenario("watermark-02-never")
def test_the_watermark_never_forbids_for_good(attach):
    """Ours: NOW, because the watermark counts only while others run."""
    worker = attach(num_blocks=8, block_size=16, watermark_blocks=4)
    for blocks in (3, 4):
        assert worker.can_admit(fresh(16 * blocks, 1)).verdict == lookup_pb2.ADMIT_VERDICT_NOW
    worker.admit(1, fresh(16, 1000))
    assert worker.can_admit(fresh(64, 1)).verdict == lookup_pb2.ADMIT_VERDICT_LATER


@pytest.mark.scenario("B28")
@pytest.mark.parametrize(("tokens", "fits"), [(784, True), (799, True), (800, False), (801, False), (1000, False)])
def test_a_prompt_that_never_fits_is_rejected_and_blocks_nobody(attach, tokens, fits):
    """50 blocks of 16 hold 800 tokens; a prompt needs room for one more, so 799 is the longest."""
    worker = attach(num_blocks=50, block_size=16)
    verdict = worker.can_admit(fresh(tokens, 1)).verdict
    assert verdict == (lookup_pb2.ADMIT_VERDICT_NOW if fits else lookup_pb2.ADMIT_VERDICT_NEVER)
    response = worker.step(admits=[admit(1, fresh(tokens, 1), arrival=1)])
    if fits:
        assert list(grants(response)) == [1]
        worker.step(releases=[1])
    else:
        rejected = response.rejected[0]
        assert (rejected.seq, rejected.needed, rejected.available) == (1, -(-(tokens + 1) // 16), 50)
    assert list(grants(worker.admit(2, fresh(10, 5000)))) == [2]


def test_a_rejected_prompt_does_not_stop_the_one_behind_it(attach):
    worker = attach(num_blocks=4)
    response = worker.step(admits=[admit(1, fresh(17, 1)), admit(2, fresh(3, 100))])
    assert [item.seq for item in response.rejected] == [1]
    assert list(grants(response)) == [2]


def test_admits_go_by_priority_then_readmission_then_arrival_then_id(attach):
    worker = attach(num_blocks=20)
    worker.step(
        admits=[
            admit(5, fresh(2, 500), priority=1, arrival=1),
            admit(4, fresh(2, 400), arrival=7),
            admit(3, fresh(2, 300), arrival=7),
            admit(2, fresh(2, 200), arrival=9, again=True),
            admit(1, fresh(2, 100), priority=-1, arrival=99),
        ]
    )
    assert {seq: table[0] for seq, table in worker.tables.items()} == {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}


def test_nobody_is_admitted_behind_the_first_refusal(attach):
    worker = attach(num_blocks=4)
    response = worker.step(
        admits=[admit(1, fresh(9, 1)), admit(2, fresh(9, 100)), admit(3, fresh(2, 200)), admit(4, fresh(20, 300))]
    )
    assert list(grants(response)) == [1]
    assert waiting(response) == {2: "POOL", 3: "BEHIND"}
    assert [item.seq for item in response.rejected] == [4]  # never fits, wherever it stands in the queue
    worker.step(releases=[1])
    assert list(grants(worker.step(admits=[admit(2, fresh(9, 100))]))) == [2]
    # An id answered `waiting` comes back although a greater one has been seen.
    assert list(grants(worker.step(admits=[admit(3, fresh(2, 200))]))) == [3]


def test_capacity_is_checked_for_the_whole_prompt_and_taken_by_chunks(attach):
    worker = attach(num_blocks=10)
    worker.admit(1, fresh(20, 1), num_tokens=4)
    assert worker.tables[1] == [1]
    response = worker.admit(2, fresh(37, 100), num_tokens=4)
    assert (waiting(response), response.waiting[0].needed) == ({2: "POOL"}, 10)


def test_a_readmission_gets_its_next_slot_and_leaves_a_block_for_each(attach):
    worker = attach(num_blocks=7)
    worker.admit(1, fresh(4, 1))
    worker.admit(2, fresh(4, 100))
    # 8 tokens again: three blocks with the next slot; two run, so three more stay spare: 6 of 5 available.
    response = worker.admit(3, fresh(8, 200), again=True)
    assert (waiting(response), response.waiting[0].needed) == ({3: "POOL"}, 6)
    worker.step(releases=[2])
    grant = grants(worker.admit(3, fresh(8, 200), again=True))[3]  # three and two spare, of 6
    assert (len(grant.blocks), grant.granted_tokens) == (3, 8)


def test_a_drained_pool_admits_nobody_new_and_lets_the_rest_end(attach):
    worker = attach(num_blocks=10)
    worker.admit(1, fresh(4, 1))
    answer = worker.stub.Drain(kv_manager_pb2.DrainRequest(pool=worker.pool))
    assert answer.live_sequences == 1
    response = worker.step(advances={1: 5}, admits=[admit(2, fresh(2, 100))])
    assert list(grants(response)) == [1]
    assert waiting(response) == {2: "DRAINING"}
    assert worker.can_admit(fresh(2, 100)).verdict == lookup_pb2.ADMIT_VERDICT_LATER
    worker.step(releases=[1])
    assert list(grants(worker.admit(1, fresh(5, 1), again=True))) == [1]
    assert worker.summary().draining


def test_a_worker_that_attaches_anew_stays_drained_another_process_does_not(attach):
    """The operator meant the process: it takes its own pool over, with or without tables, and admits nobody new."""
    worker = attach(pool="drained", worker_id="A", num_blocks=10)
    worker.stub.Drain(kv_manager_pb2.DrainRequest(pool="drained"))
    worker.attached = False
    again = attach(pool="drained", worker_id="A", num_blocks=10)
    assert again.summary().draining
    assert waiting(again.admit(1, fresh(2, 1))) == {1: "DRAINING"}
    again.attached = False
    other = attach(pool="drained", worker_id="B", num_blocks=10)
    assert not other.summary().draining
    assert list(grants(other.admit(1, fresh(2, 1)))) == [1]


def test_a_waiting_request_that_is_given_up_releases_its_id(attach, refused):
    """Its id stays valid until then, after that it is old; the release itself changes no block."""
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(12, 1))
    assert waiting(worker.admit(2, fresh(8, 100))) == {2: "POOL"}
    assert waiting(worker.admit(4, fresh(8, 200))) == {4: "POOL"}
    assert waiting(worker.admit(2, fresh(8, 100))) == {2: "POOL"}
    stats = worker.summary().stats
    assert worker.step(releases=[2, 3]).stats == stats  # 3 was never heard of, but is not above 4
    for seq in (2, 3):
        with refused("INVALID_ARGUMENT", "STALE_SEQUENCE_ID"):
            worker.admit(seq, fresh(8, 100))
    response = worker.step(releases=[1], admits=[admit(4, fresh(8, 200))])
    assert list(grants(response)) == [4]


def test_an_absurd_advance_is_rejected_like_any_other_that_outgrows_the_pool(attach):
    """No bad item: 2^32 - 1 tokens take 2^30 blocks of 4."""
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(5, 1))
    response = worker.step(advances={1: 2**32 - 1})
    assert [(item.seq, item.needed, item.available) for item in response.rejected] == [(1, 2**30, 4)]
    assert worker.available() == 4


def test_the_greatest_id_leaves_no_new_one_and_is_taken(attach, refused):
    worker = attach(num_blocks=4)
    assert list(grants(worker.admit(2**63 - 1, fresh(2, 1)))) == [2**63 - 1]
    with refused("INVALID_ARGUMENT", "OUT_OF_RANGE"):
        worker.admit(2**63, fresh(2, 1))


def test_what_a_waiting_request_needs_is_the_total(attach):
    """Two of four blocks are free. Eleven tokens take 3, whatever is free; the watermark of 1 makes it 4."""
    worker = attach(num_blocks=4, watermark_blocks=1)
    worker.admit(1, fresh(7, 1))
    response = worker.admit(2, fresh(11, 100))
    assert [(item.seq, item.needed) for item in response.waiting] == [(2, 4)]
    assert worker.available() == 2


def test_an_advance_that_outgrows_the_pool_is_rejected_and_released(attach):
    worker = attach(num_blocks=3)
    worker.admit(1, fresh(11, 1))
    response = worker.step(advances={1: 13})
    assert [(item.seq, item.needed, item.available) for item in response.rejected] == [(1, 4, 3)]
    assert worker.available() == 3
