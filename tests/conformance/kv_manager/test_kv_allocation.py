"""Who gets which block: free order, eviction order, growth, capacity.

Block math: a prompt of n tokens holds ceil(n / block_size) blocks; its first floor(n / block_size) carry digests.
"""

import pytest
from kv_fake_worker import admit, fresh, grants, waiting

COMMON = fresh(48, 1)  # three full blocks of 16


@pytest.mark.scenario("alloc-01-cold-prefill")
def test_a_cold_prompt_takes_blocks_in_order_and_hashes_the_full_ones(attach):
    worker = attach(num_blocks=10, block_size=16)
    grant = grants(worker.admit(1, COMMON + fresh(7, 100)))[1]
    assert (list(grant.blocks), grant.cached_tokens, grant.hit_blocks, grant.granted_tokens) == ([1, 2, 3, 4], 0, 0, 55)
    assert worker.hashed() == {1, 2, 3}
    assert worker.ref_counts(1, 2, 3, 4) == [1, 1, 1, 1]


@pytest.mark.scenario("share-01-live-prefix", "free-01-order-two-sharers")
def test_a_live_prefix_is_shared_and_freed_tail_first(attach):
    worker = attach(num_blocks=10, block_size=16)
    worker.admit(1, COMMON + fresh(7, 100))
    grant = grants(worker.admit(2, COMMON + fresh(5, 200)))[2]
    assert (list(grant.blocks), grant.cached_tokens) == ([1, 2, 3, 5], 48)
    assert worker.ref_counts(1, 2, 3, 5) == [2, 2, 2, 1]
    assert worker.available() == 5
    worker.step(releases=[1])
    worker.step(releases=[2])
    # 4, then 5 go to the front; 3, 2, 1 carry digests and go to the back, tail first.
    assert worker.grant_order(3) == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


@pytest.mark.scenario("share-02-hit-on-freed", "evict-01-drain-order")
def test_freed_blocks_are_hit_in_the_middle_of_the_free_list(attach):
    worker = attach(num_blocks=10, block_size=16)
    worker.admit(1, COMMON + fresh(7, 100))
    worker.admit(2, COMMON + fresh(5, 200))
    worker.step(releases=[1])
    worker.step(releases=[2])
    grant = grants(worker.admit(3, COMMON + fresh(6, 300)))[3]
    assert (list(grant.blocks), grant.cached_tokens) == ([1, 2, 3, 5], 48)
    assert worker.available() == 6
    worker.step(releases=[3])
    # A prompt of 160 tokens can never fit ten blocks of 16 (room for one token more), so 159 tokens drain the pool.
    assert worker.grant_order(4) == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert worker.matched([*COMMON, 7]) == 0
    assert worker.available() == 0


@pytest.mark.scenario("alloc-02-exhausted", "toka-02-oom-typed")
def test_a_full_pool_refuses_and_changes_nothing(attach):
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(12, 1))
    worker.step(advances={1: 16})  # the fourth block is reached by growth: a prompt of 16 would be rejected
    assert worker.available() == 0
    before = worker.blocks()
    response = worker.admit(2, fresh(4, 100))
    assert waiting(response) == {2: "POOL"}
    assert response.waiting[0].needed == 1
    assert worker.blocks() == before


@pytest.mark.scenario("alloc-04-all-or-nothing")
def test_hits_in_the_free_list_count_against_an_admission(attach):
    worker = attach(num_blocks=10, block_size=16)
    worker.admit(1, [*COMMON, 90])  # 1..3 hashed, 4
    worker.step(releases=[1])
    worker.admit(1, COMMON, again=True)  # holds 1..3 and, readmitted, a block for its next token: 4
    long = COMMON + fresh(48, 500)
    worker.admit(2, long)  # hits 1..3, takes 5 6 7
    worker.admit(3, fresh(20, 900))  # 8 9
    worker.step(releases=[2])
    assert worker.available() == 4  # 10, and 7 6 5 that are cached
    before = worker.blocks()
    # 128 tokens: 3 hits referenced, 3 hits in the free list, 2 new: 5 wanted of 4.
    response = worker.admit(4, long + fresh(32, 700))
    assert waiting(response) == {4: "POOL"}
    assert response.waiting[0].needed == 5
    assert worker.blocks() == before
    worker.step(releases=[4])  # given up while waiting: accepted without effect


@pytest.mark.scenario("alloc-05-count-evictable-hits")
def test_evictable_hits_are_counted_once(attach):
    worker = attach(num_blocks=5)
    shared = fresh(8, 1)
    worker.admit(1, shared)
    worker.step(releases=[1])
    response = worker.admit(2, shared + fresh(16, 100))  # 24 tokens: with room for one more 7 blocks of 5
    assert [item.seq for item in response.rejected] == [2]
    assert worker.ref_counts(1, 2) == [0, 0]
    grant = grants(worker.admit(3, shared + fresh(8, 200)))[3]  # 16 tokens, 17 fit 5 blocks
    assert (list(grant.blocks), grant.cached_tokens) == ([1, 2, 3, 4], 8)
    assert worker.available() == 1


@pytest.mark.scenario("alloc-07-hash-reset-on-reuse")
def test_a_block_granted_again_loses_its_digest(attach):
    worker = attach(num_blocks=2, block_size=16)
    worker.admit(1, fresh(16, 1))
    worker.step(releases=[1])
    assert worker.hashed() == {1}
    worker.admit(2, fresh(15, 1))  # block 2, never used, comes first
    worker.step(advances={2: 17})  # now block 1 is taken
    assert worker.tables[2] == [2, 1]
    assert worker.hashed() == set()
    assert worker.matched(fresh(16, 1)) == 0


@pytest.mark.scenario("free-02-uncached-lifo")
def test_partial_blocks_come_back_first(attach):
    worker = attach(num_blocks=7)
    worker.admit(1, fresh(3, 1))
    worker.admit(2, fresh(9, 100))
    assert worker.tables == {1: [1], 2: [2, 3, 4]}
    worker.step(releases=[1])
    worker.step(releases=[2])
    assert worker.grant_order(3) == [4, 1, 5, 6, 7, 3, 2]


@pytest.mark.scenario("usage-01")
def test_the_null_block_counts_for_nothing(attach):
    worker = attach(num_blocks=10)
    worker.admit(1, fresh(20, 1))
    stats = worker.summary().stats
    assert (stats.num_blocks, stats.referenced_blocks) == (10, 5)
    worker.step(releases=[1])
    stats = worker.summary().stats
    assert (stats.free_blocks, stats.cached_blocks, stats.referenced_blocks, stats.fenced_blocks) == (5, 5, 0, 0)


@pytest.mark.scenario("ref-01-three-sharers")
def test_three_sharers_leave_one_after_another(attach):
    worker = attach(num_blocks=11)
    shared = fresh(8, 1)
    for seq in (1, 2, 3):
        worker.admit(seq, shared + fresh(2, 100 * seq))
    assert worker.tables == {1: [1, 2, 3], 2: [1, 2, 4], 3: [1, 2, 5]}
    counts = [worker.ref_counts(1, 2)]
    for seq in (2, 1, 3):
        worker.step(releases=[seq])
        counts.append(worker.ref_counts(1, 2))
    assert counts == [[3, 3], [2, 2], [1, 1], [0, 0]]
    assert worker.grant_order(4) == [5, 3, 4, 6, 7, 8, 9, 10, 11, 2, 1]


@pytest.mark.scenario("ref-02-lru-refresh")
def test_a_hit_makes_a_prefix_recent(attach):
    worker = attach(num_blocks=7)
    worker.admit(1, fresh(4, 1))
    worker.admit(2, fresh(4, 100))
    worker.step(releases=[1, 2])
    worker.admit(3, [*fresh(4, 1), 50])
    assert worker.tables[3] == [1, 3]
    worker.step(releases=[3])
    assert worker.grant_order(4) == [3, 4, 5, 6, 7, 2, 1]


@pytest.mark.scenario("ref-04-touch-two-of-six")
def test_a_partial_hit_leaves_the_rest_of_the_chain_in_place(attach):
    worker = attach(num_blocks=10, block_size=16)
    first = fresh(87, 1)
    worker.admit(1, first)
    worker.admit(2, fresh(48, 500))
    worker.step(releases=[1])
    worker.step(releases=[2])
    grant = grants(worker.admit(3, first[:35]))[3]
    assert (list(grant.blocks), grant.cached_tokens) == ([1, 2, 6], 32)
    assert worker.available() == 7
    assert worker.grant_order(4) == [10, 5, 4, 3, 9, 8, 7]


@pytest.mark.scenario("ref-05-double-free")
def test_a_second_release_has_no_effect(attach):
    worker = attach(num_blocks=4)
    worker.admit(1, fresh(5, 1))
    worker.step(releases=[1])
    before = worker.blocks()
    worker.step(releases=[1])
    assert worker.blocks() == before


@pytest.mark.scenario("grow-01-boundary")
def test_growth_takes_a_block_at_the_boundary_and_hashes_it_when_full(attach):
    worker = attach(num_blocks=10)
    worker.admit(1, fresh(8, 1))
    assert worker.tables[1] == [1, 2]
    grant = grants(worker.step(advances={1: 9}))[1]
    assert (grant.first_index, list(grant.blocks), grant.granted_tokens) == (2, [3], 9)
    # Tokens 10, 11 and 12 take nothing and are not asked for (rule 8); the commit of the full block hashes it.
    worker.step(commits={1: (8, [51, 52, 53, 54])})
    assert worker.hashed() == {1, 2, 3}
    assert worker.available() == 7


@pytest.mark.scenario("grow-02-19-tokens")
def test_nineteen_tokens_take_one_block_and_fill_another(attach):
    worker = attach(num_blocks=10, block_size=16)
    prompt = fresh(78, 1)
    worker.admit(1, prompt, num_tokens=59)
    assert worker.tables[1] == [1, 2, 3, 4]
    assert worker.hashed() == {1, 2, 3}
    worker.step(advances={1: 78})
    assert worker.tables[1] == [1, 2, 3, 4, 5]
    assert worker.hashed() == {1, 2, 3, 4}


@pytest.mark.scenario("grow-04-chunked-prefill")
def test_chunks_take_their_blocks_one_by_one(attach):
    worker = attach(num_blocks=10)
    worker.admit(1, fresh(10, 1), num_tokens=3)
    tables = [list(worker.tables[1])]
    for length in (8, 10):
        worker.step(advances={1: length})
        tables.append(list(worker.tables[1]))
    assert tables == [[1], [1, 2], [1, 2, 3]]
    assert worker.hashed() == {1, 2}


@pytest.mark.scenario("B10")
def test_eviction_takes_the_tail_of_a_chain_first(attach):
    worker = attach(num_blocks=4)
    prompt = fresh(12, 1)  # three blocks; the fourth is the room for its next token
    seq = 0
    for _ in range(200):
        seq += 2
        worker.admit(seq - 1, prompt)
        worker.step(releases=[seq - 1])
        worker.admit(seq, fresh(2, 1000))  # the block never hashed
        worker.step(advances={seq: 5})  # and the tail of the cached chain
        worker.step(releases=[seq])
        assert worker.matched(prompt) == 8


@pytest.mark.scenario("B11")
def test_a_chunked_prompt_keeps_its_head(attach):
    worker = attach(num_blocks=32, block_size=16)
    prompt = fresh(320, 1)  # 20 blocks, in chunks of 4 blocks
    worker.admit(1, prompt, num_tokens=64)
    for length in range(128, 321, 64):
        worker.step(advances={1: length})
    worker.step(releases=[1])
    # Short prompts take the 12 unused blocks, then 10 of the cached ones, while all of them run.
    worker.step(admits=[admit(seq, fresh(32, 1000 * seq)) for seq in range(2, 13)])
    assert len(worker.tables) == 11
    assert worker.matched(prompt) == 10 * 16


@pytest.mark.scenario("B07")
def test_a_recycled_block_no_longer_answers_to_its_old_digest(attach):
    worker = attach(num_blocks=4)
    prompt = fresh(8, 1)
    worker.admit(1, prompt)
    assert worker.summary().stats.referenced_blocks == 2
    worker.step(releases=[1])
    worker.admit(2, fresh(12, 100))
    worker.step(advances={2: 16})  # all four blocks: the prompt's were recycled
    assert sorted(worker.tables[2]) == [1, 2, 3, 4]
    worker.step(releases=[2])
    assert worker.matched(prompt) == 0
    assert grants(worker.admit(3, prompt))[3].cached_tokens == 0
