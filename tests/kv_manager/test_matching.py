"""MatchPrefix in slices: the same answer as an admission would find, and never long at a time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_streams import pack

from kv_manager.core import prompt_size, slices
from kv_manager.core.manager import Manager
from octavo.kv.v1 import attach_pb2, common_pb2, lookup_pb2, steps_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit


def attach(manager, name, **fields):
    fields = {"num_blocks": 24, "block_size": 2} | fields
    spec = attach_pb2.PoolSpec(pool=name, worker_id="w", reuse_regime=common_pb2.REUSE_REGIME_ORDERED, **fields)
    return manager.attach([attach_pb2.AttachRequest(pool=spec)]).header.epoch


def fill(manager, name, epoch, prompts):
    """Admit prompts one per step and release each in the next; nothing is in flight in the end."""
    for step, ids in enumerate([*prompts, None], start=1):
        request = steps_pb2.StepRequest(pool=name, epoch=epoch, step=step, completed_step=step - 1)
        if step > 1:
            request.releases.add(seq=step - 1)
        if ids is not None:
            request.admits.add(seq=step, token_ids=pack(ids), num_tokens=len(ids), arrival=step)
        manager.step(request)


def match(manager, ids, **fields):
    request = lookup_pb2.MatchPrefixRequest(token_ids=pack(ids), **fields)
    return {each.header.pool: each for each in manager.match_prefix(request).matches}


PROMPTS = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=20), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(PROMPTS, st.lists(st.integers(1, 2), min_size=1, max_size=24), st.data())
def test_it_finds_what_an_admission_would(prompts, asked, data):
    """Once every step has completed, what everyone may know is what the pool itself knows."""
    manager = Manager()
    pools = data.draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "block_size": st.integers(1, 3),
                    "window": st.sampled_from([None, None, 1, 3, 6]),
                    "num_blocks": st.integers(8, 24),
                    "model_fingerprint": st.sampled_from(["a", "b"]),
                }
            ),
            min_size=1,
            max_size=4,
        )
    )
    for number, fields in enumerate(pools):
        fill(manager, f"{number}", attach(manager, f"{number}", **fields), prompts)
    found = match(manager, asked)
    assert list(found) == [f"{number}" for number in range(len(pools))]
    for name, each in found.items():
        verdict = manager.can_admit(lookup_pb2.CanAdmitRequest(pool=name, token_ids=pack(asked)))
        if verdict.verdict != lookup_pb2.ADMIT_VERDICT_NEVER:
            assert each.cached_tokens == verdict.cached_tokens, (name, pools[int(name)])
    alone = [match(manager, asked, pools=[name])[name] for name in found]
    assert alone == list(found.values())


def test_replicas_of_one_model_tell_the_same_digests():
    manager = Manager()
    for name, model in (("a", "m"), ("b", "m"), ("other", "n")):
        fill(manager, name, attach(manager, name, model_fingerprint=model), [[1, 2, 3, 4, 5]])
    found = match(manager, [1, 2, 3, 4, 9], include_digests=True)
    assert [len(each.digests) for each in found.values()] == [2, 2, 2]
    assert found["a"].digests == found["b"].digests != found["other"].digests
    assert {each.cached_tokens for each in found.values()} == {4}


@pytest.mark.parametrize("fields", [{}, {"window": 8}])
def test_a_long_prompt_is_looked_up_in_slices(fields):
    """4,000 blocks that three pools hold are 12,000 looks: less than 256 of them between two stops, then one answer."""
    manager, ids = Manager(), [random.Random(7).randrange(2**32) for _ in range(8_000)]
    for name in ("a", "b", "c"):
        fill(manager, name, attach(manager, name, num_blocks=8_100, **fields), [ids])
    work = list(manager.matching(lookup_pb2.MatchPrefixRequest(token_ids=pack(ids))))
    *pauses, answer = work
    assert set(pauses) == {None}
    assert len(pauses) >= 12_000 // (2 * slices.SLICE_BLOCKS)
    assert [each.cached_tokens for each in answer.matches] == [7_999] * 3


def test_steps_go_on_between_slices():
    """The pool is emptied while its prompt is looked up: the answer says what was there, and nothing breaks."""
    manager, ids = Manager(), list(range(2_000))
    epoch = attach(manager, "a", num_blocks=1_100)
    fill(manager, "a", epoch, [ids])
    work = manager.matching(lookup_pb2.MatchPrefixRequest(token_ids=pack(ids)))
    assert manager.run_slice(work) is None
    other = steps_pb2.Admit(seq=9, token_ids=pack(list(range(5_000, 7_190))), num_tokens=2_190)
    granted = manager.step(
        steps_pb2.StepRequest(pool="a", epoch=epoch, step=3, completed_step=2, admits=[other])
    ).grants
    assert len(granted[0].blocks) == 1_095  # 100 were free, 995 of the 1,000 cached ones had to go
    while (answer := manager.run_slice(work)) is None:
        pass
    assert slices.SLICE_BLOCKS <= answer.matches[0].cached_tokens // 2 < 2 * slices.SLICE_BLOCKS
    with pytest.raises(StopIteration):
        manager.run_slice(work)


def test_too_long_a_prompt_is_refused_before_it_is_hashed():
    """At block size 2 one block more than 1,048,576 is 2,097,154 tokens; two pools share 262,144 digests."""
    manager = Manager()
    for name in ("a", "b"):
        attach(manager, name, num_blocks=1_100_000)
    too_long = bytes(4) * (2 * prompt_size.MAX_PROMPT_BLOCKS + 2)
    for ask in (
        lambda: manager.match_prefix(lookup_pb2.MatchPrefixRequest(token_ids=too_long)),
        lambda: manager.can_admit(lookup_pb2.CanAdmitRequest(pool="a", token_ids=too_long)),
    ):
        with pytest.raises(ServiceError) as caught:
            ask()
        assert caught.value.fields == {
            "token_ids": "holds 1048577 full blocks of pool 'a', must be at most 1048576",
        }
    quarter = bytes(4) * (2 * (1 << 17) + 2)
    with pytest.raises(ServiceError) as caught:
        manager.match_prefix(lookup_pb2.MatchPrefixRequest(token_ids=quarter, include_digests=True))
    assert caught.value.fields == {
        "include_digests": "asks for 262146 digests, must be at most 262144: ask fewer pools or a shorter prompt"
    }
    one_pool = lookup_pb2.MatchPrefixRequest(pools=["a"], token_ids=quarter, include_digests=True)
    answer = manager.match_prefix(one_pool)
    assert len(answer.matches[0].digests) == 131_073
