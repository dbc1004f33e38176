"""Prefix hits: what is found, what it costs, and who may find it."""

import hashlib
import struct

import pytest
from kv_fake_worker import admit, fresh, grants, pack

from octavo.kv.v1 import common_pb2, lookup_pb2

EIGHT = fresh(8, 1)


@pytest.mark.scenario("hit-01-full-aligned", "hit-02-one-more-token", "toka-01-last-block", "B05")
def test_a_prompt_found_whole_shares_every_block_and_computes_one_token(attach):
    """Ours: cached = n - 1 and no copy. The last token's K and V go to the null block, below the write floor."""
    worker = attach(num_blocks=10)
    worker.admit(1, EIGHT)
    whole = worker.admit(2, EIGHT)
    grant = grants(whole)[2]
    assert (list(grant.blocks), grant.cached_tokens, grant.hit_blocks, grant.granted_tokens) == ([1, 2], 7, 2, 8)
    assert list(whole.copies.sources) == []
    grant = grants(worker.admit(3, [*EIGHT, 50]))[3]
    assert (list(grant.blocks), grant.cached_tokens, grant.granted_tokens) == ([1, 2, 3], 8, 9)
    assert worker.ref_counts(1, 2, 3) == [3, 3, 1]


@pytest.mark.scenario("hit-04-peek-is-pure")
def test_asking_changes_nothing(attach):
    worker = attach(num_blocks=5)
    worker.admit(1, EIGHT)
    worker.step(releases=[1])
    before = worker.state_digest()
    assert worker.matched([*EIGHT, 50]) == 8
    answer = worker.can_admit([*EIGHT, 50])
    assert answer.verdict == lookup_pb2.ADMIT_VERDICT_NOW
    # Two hits that lie in the free list and one new block.
    assert (answer.needed, answer.available, answer.cached_tokens) == (3, 5, 8)
    assert worker.state_digest() == before


@pytest.mark.scenario("B20")
def test_look_ups_hold_nothing(attach):
    worker = attach(num_blocks=100)
    for seq in range(1, 101):
        worker.admit(seq, fresh(3, 10 * seq))
        worker.step(commits={seq: (3, [7])}, releases=[seq])
    worker.step()
    for seq in range(1, 101):
        assert worker.matched([*fresh(3, 10 * seq), 7, 8]) == 4
    assert worker.available() == 100
    assert len(worker.grant_order(101)) == 100


@pytest.mark.scenario("tgi-02-non-aligned")
def test_only_the_full_blocks_of_a_short_prompt_are_found(attach):
    worker = attach(num_blocks=12, block_size=2)
    worker.admit(1, fresh(3, 1))
    worker.step(advances={1: 7})
    assert worker.tables[1] == [1, 2, 3, 4]
    worker.step(releases=[1])
    assert grants(worker.admit(2, fresh(3, 1)))[2].cached_tokens == 2


@pytest.mark.scenario("hit-07-same-step-dedup", "B08")
def test_equal_prompts_of_one_step_share(attach):
    """Within the pool a digest is visible in the answer that grants its last slot: all writes come before all reads."""
    worker = attach(num_blocks=20, block_size=16)
    prompt = fresh(100, 1)
    response = worker.step(admits=[admit(1, prompt), admit(2, prompt)])
    first, second = grants(response)[1], grants(response)[2]
    assert (first.cached_tokens, second.cached_tokens) == (0, 96)
    assert list(second.blocks) == [*first.blocks[:6], 8]
    assert second.granted_tokens - second.cached_tokens == 100 % 16


@pytest.mark.scenario("nano-01-not-before-computed", "B08")
def test_others_see_a_digest_only_when_its_step_has_completed(attach):
    worker = attach(num_blocks=10)
    prompt = fresh(10, 1)
    worker.admit(1, prompt)
    assert worker.matched(prompt) == 0
    worker.step(completed=0)
    assert worker.matched(prompt) == 0
    worker.step(completed=1)
    assert worker.matched(prompt) == 8


@pytest.mark.scenario("hit-08-duplicate-copy-survives")
def test_a_duplicate_copy_survives_the_first(attach):
    """Two copies come about when equal blocks are generated; a full hit makes none here."""
    worker = attach(num_blocks=5)
    four = fresh(4, 1)
    worker.step(admits=[admit(1, four[:3]), admit(2, four[:3])])  # neither block is full yet
    worker.step(commits={1: (3, four[3:]), 2: (3, four[3:])})
    assert worker.hashed() == {1, 2}
    worker.step(releases=[1])
    worker.admit(3, fresh(13, 100))  # 3 4 5 and the cached 1
    assert worker.tables[3] == [3, 4, 5, 1]
    assert worker.matched([*four, 9]) == 4
    assert grants(worker.admit(4, four))[4].blocks == [2]


@pytest.mark.scenario("hit-10-resume-after-partial-eviction")
def test_what_is_left_of_a_prefix_is_found_again(attach):
    worker = attach(num_blocks=6)
    prompt = fresh(12, 1)
    worker.admit(1, prompt)
    worker.step(releases=[1])
    worker.admit(2, fresh(13, 100))
    assert worker.tables[2] == [4, 5, 6, 3]
    assert worker.matched(prompt) == 8


@pytest.mark.scenario("hit-11-multi-turn")
def test_the_next_turn_finds_the_answer_too(attach):
    worker = attach(num_blocks=40, block_size=16)
    prompt, answer = fresh(100, 1), fresh(200, 1000)
    worker.admit(1, prompt)
    worker.step(advances={1: 300})
    worker.step(commits={1: (100, answer)}, releases=[1])
    grant = grants(worker.admit(2, prompt + answer))[2]
    assert grant.cached_tokens == 288
    assert grant.granted_tokens - grant.cached_tokens == 300 % 16


@pytest.mark.scenario("B13")
def test_a_second_turn_hits_nine_blocks_of_the_first(attach):
    worker = attach(num_blocks=40, block_size=16)
    prompt, answer = fresh(100, 1), fresh(50, 1000)
    worker.admit(1, prompt)
    worker.step(advances={1: 150})
    # The 50th token was sampled and never written, so it is not committed: 149 ids fill nine blocks.
    worker.step(commits={1: (100, answer[:49])}, releases=[1])
    assert grants(worker.admit(2, prompt + answer + fresh(50, 2000)))[2].cached_tokens == 144


def documented_digests(fingerprint: str, root: dict[str, str], ids: list[int], block_size: int) -> list[bytes]:
    """The chain by the layout documented at PrefixRoot, written down a second time."""
    fields = (fingerprint, root.get("tenant", ""), root.get("salt", ""), root.get("adapter", ""))
    message = b"octavo.kv.v1"
    for tag, value in enumerate(fields, start=1):
        message += bytes([tag]) + struct.pack("<I", len(value.encode())) + value.encode()
    parent, chain = hashlib.sha256(message).digest(), []
    for start in range(0, len(ids) - len(ids) % block_size, block_size):
        parent = hashlib.sha256(parent + struct.pack(f"<{block_size}I", *ids[start : start + block_size])).digest()
        chain.append(parent)
    return chain


@pytest.mark.scenario("hash-01-chain", "hash-04-lora-path", "hash-05-position", "B15")
@pytest.mark.parametrize(
    "root",
    [{}, {"salt": "salt1"}, {"adapter": "/p1"}, {"adapter": "/p2"}, {"tenant": "ä", "salt": "s", "adapter": "a"}],
)
def test_digests_follow_the_documented_layout(attach, root):
    worker = attach(num_blocks=10, model_fingerprint="model-1")
    ids = [1, 2, 3, 4, 1, 2, 3, 4, 4_294_967_295, 0, 5, 6, 7]
    request = lookup_pb2.MatchPrefixRequest(
        pools=[worker.pool], token_ids=pack(ids), root=common_pb2.PrefixRoot(**root), include_digests=True
    )
    told = list(worker.stub.MatchPrefix(request).matches[0].digests)
    assert told == documented_digests("model-1", root, ids, 4)
    assert len(set(told)) == 3  # equal ids at different places differ
    worker.admit(1, ids, root=common_pb2.PrefixRoot(**root))
    infos = worker.blocks()
    assert [infos[block].digest for block in (1, 2, 3)] == told


@pytest.mark.scenario("hash-02-salt-isolation", "radix-05-namespace", "B03", "B04")
@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ({"tenant": "a", "adapter": "b"}, {"tenant": "b", "adapter": "a"}),
        ({"tenant": "a", "adapter": "b"}, {"tenant": "ab"}),
        ({"tenant": "a", "adapter": "b"}, {"adapter": "ab"}),
        ({"tenant": "a", "adapter": "b"}, {"salt": "a"}),
        ({"salt": "s1"}, {"salt": "s2"}),
        ({"salt": "s1"}, {}),
        ({"tenant": "A", "salt": "mine"}, {"tenant": "B", "salt": "mine"}),
    ],
)
def test_roots_of_different_meaning_never_match(attach, stored, asked):
    worker = attach(num_blocks=20)
    prompt = fresh(33, 1)
    worker.admit(1, prompt, root=common_pb2.PrefixRoot(**stored))
    worker.step()
    assert worker.matched(prompt, **stored) == 32
    assert worker.matched(prompt, **asked) == 0
    assert grants(worker.admit(2, prompt, root=common_pb2.PrefixRoot(**asked)))[2].cached_tokens == 0
    assert grants(worker.admit(3, prompt, root=common_pb2.PrefixRoot(**stored)))[3].cached_tokens == 32


@pytest.mark.scenario("hash-07-not-speculative")
def test_drafts_never_enter_the_cache(attach):
    worker = attach(num_blocks=5)
    worker.admit(1, fresh(6, 1))
    worker.step(advances={1: 10})  # one verified token and three drafts: positions 6 to 9
    assert worker.hashed() == {1}
    worker.step(commits={1: (6, [50])})  # the verified one: seven tokens known
    assert worker.hashed() == {1}
    worker.step(commits={1: (7, [51])})
    assert worker.hashed() == {1, 2}


@pytest.mark.scenario("reset-01-refused-while-busy")
def test_a_cache_in_use_is_not_reset(attach, refused):
    worker = attach(num_blocks=10, block_size=16)
    worker.admit(1, fresh(55, 1))
    before = worker.state_digest()
    with refused("FAILED_PRECONDITION", "CACHE_IN_USE"):
        worker.reset()
    assert worker.state_digest() == before
    worker.step(releases=[1])
    worker.step()
    assert worker.reset().cleared_blocks == 3
    assert worker.matched(fresh(55, 1)) == 0
    assert worker.hashed() == set()


@pytest.mark.scenario("radix-01-split")
@pytest.mark.parametrize("block_size", [1, 2])
def test_prompts_that_part_share_what_comes_before(attach, block_size):
    worker = attach(num_blocks=30, block_size=block_size)
    first, second = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 9, 10]
    worker.admit(1, first)
    worker.admit(2, second)
    worker.step(releases=[1, 2])
    assert len(worker.hashed()) * block_size == 10
    assert worker.matched([1, 2, 3, 4, 999, 1000]) == 4
    assert worker.matched([1, 2, 3, 4, 5, 6, 777]) == 6
    assert len(worker.hashed()) * block_size == 10


@pytest.mark.scenario("radix-02-lock")
def test_a_prefix_in_use_outlives_every_eviction(attach):
    worker = attach(num_blocks=11, block_size=1)
    worker.admit(1, [1, 2, 3, 4, 5, 6, 7, 8])
    worker.admit(2, [1, 2, 9, 10])
    worker.step(releases=[1])  # the second, which holds [1, 2, 9, 10], goes on
    assert (worker.summary().stats.referenced_blocks, worker.summary().stats.cached_blocks) == (4, 6)
    worker.admit(3, fresh(6, 100))  # the block never used, then the tail of the first: 8, 7, 6, 5, 4
    assert worker.matched([1, 2, 3, 4, 5, 6, 7, 8]) == 3
    worker.step(advances={3: 7})
    assert worker.matched([1, 2, 3, 4]) == 2
    assert worker.matched([1, 2, 9, 10, 11]) == 4


@pytest.mark.scenario("radix-04-page-align")
def test_only_full_blocks_are_found(attach):
    worker = attach(num_blocks=10)
    worker.admit(1, fresh(6, 1))
    worker.step(releases=[1])
    assert worker.matched(fresh(6, 1)) == 4
    assert worker.summary().stats.cached_blocks == 1


@pytest.mark.scenario("radix-08-integrity")
def test_one_more_block_evicts_one_and_everything_adds_up(attach):
    worker = attach(num_blocks=8)
    worker.admit(1, fresh(8, 1))
    worker.step(releases=[1])
    worker.admit(2, fresh(24, 100))  # six of eight
    worker.admit(3, fresh(3, 500))  # evicts the tail of the first
    stats = worker.summary().stats
    assert (stats.free_blocks, stats.cached_blocks, stats.referenced_blocks) == (0, 1, 7)
    assert worker.matched(fresh(9, 1)) == 4
