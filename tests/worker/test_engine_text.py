"""Float32 texts of the engine equal transformers', whatever happens to a sequence on the way; draws repeat exactly."""

from pathlib import Path

import pytest
from engine_lab import LabModel, Sample, Unpriced, request
from reference import BEAM_CASES, BEAM_PROMPTS, TOKENS, beams, greedy, prompts

from octavo.worker.v1 import sampling_pb2, worker_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.model]

# The prompts that grow side by side in a pool with two blocks too few for both: the later one gives way.
PAIRS = [("chat", "code"), ("emoji and CJK", "short")]


@pytest.fixture(scope="module")
def model(demo_model: Path) -> LabModel:
    return LabModel(demo_model)


@pytest.fixture(scope="module")
def ids(demo_model: Path) -> dict[str, list[int]]:
    return prompts(demo_model)


@pytest.fixture(scope="module")
def texts(demo_model: Path) -> dict[str, list[int]]:
    return greedy(demo_model, demo_model.parent)


def blocks(*lengths: int) -> int:
    return sum(-(-(length + TOKENS) // 16) for length in lengths)


@pytest.mark.parametrize("host_blocks", [0, 64], ids=["recompute", "swap"])
def test_greedy_text_after_preemption(
    model: LabModel, ids: dict[str, list[int]], texts: dict[str, list[int]], host_blocks: int
) -> None:
    for first, second in PAIRS:
        num_blocks = blocks(len(ids[first]), len(ids[second])) - 2
        with model.engine(num_blocks, host_blocks=host_blocks) as lab:
            samples = lab.generate(request(ids[first], TOKENS), request(ids[second], TOKENS))
            computed = lab.engine.statistics.computed_tokens
        assert [one.tokens for (one,) in samples] == [texts[first], texts[second]]
        (victim,) = samples[1]
        assert (victim.timeline.recomputes > 0, victim.timeline.swaps > 0) == (not host_blocks, bool(host_blocks))
        once = len(ids[first]) + len(ids[second]) + 2 * (TOKENS - 1)
        assert (computed > once) == (not host_blocks)


@pytest.mark.soak
@pytest.mark.parametrize("host_blocks", [0, 200], ids=["recompute", "swap"])
def test_every_prompt_gives_way_and_comes_back(
    model: LabModel, ids: dict[str, list[int]], texts: dict[str, list[int]], host_blocks: int
) -> None:
    """Each prompt behind another one, in a pool with two blocks too few for both."""
    for name, prompt in ids.items():
        other = "digits" if name != "digits" else "short"
        num_blocks = blocks(len(ids[other]), len(prompt)) - 2
        with model.engine(num_blocks, host_blocks=host_blocks, manager=Unpriced()) as lab:
            (first,), (victim,) = lab.generate(request(ids[other], TOKENS), request(prompt, TOKENS))
        assert [first.tokens, victim.tokens] == [texts[other], texts[name]], name
        assert (victim.timeline.recomputes > 0, victim.timeline.swaps > 0) == (not host_blocks, bool(host_blocks)), name


@pytest.mark.parametrize("length", [16, 32, 33])
def test_a_prompt_found_whole_is_forked(model: LabModel, ids: dict[str, list[int]], length: int) -> None:
    """B05: prompts of whole blocks, twice, then with two samples: there is always a token left to compute."""
    prompt = ids["long"][:length]
    with model.engine(64) as lab:
        ((cold,),) = lab.generate(request(prompt, 8))
        ((warm,),) = lab.generate(request(prompt, 8))
        (both,) = lab.generate(request(prompt, 8, n=2))
    full = length // 16 * 16
    assert warm.timeline.cached_tokens == (full if full < length else length - 1)
    assert [one.tokens for one in (cold, warm, *both)] == [cold.tokens] * 4


def test_greedy_text_after_a_fork(model: LabModel, ids: dict[str, list[int]], texts: dict[str, list[int]]) -> None:
    # Two of the prompts end inside a block, so every sample but the last to write copies that one.
    with model.engine(100) as lab:
        samples = lab.generate(*(request(ids[name], TOKENS, n=3) for name in ("short", "1 token")))
        forks = lab.engine.statistics.forks
    assert [[one.tokens for one in row] for row in samples] == [[texts["short"]] * 3, [texts["1 token"]] * 3]
    assert forks == 2 * 2


@pytest.mark.parametrize("host_blocks", [0, 64], ids=["recompute", "swap"])
def test_a_group_gives_way_whole_and_comes_back(
    model: LabModel, ids: dict[str, list[int]], texts: dict[str, list[int]], host_blocks: int
) -> None:
    # The group shares the full blocks of its prompt; each member has its own of the rest.
    alone, group = len(ids["chat"]), len(ids["code"])
    own = blocks(group) - group // 16
    num_blocks = blocks(alone) + group // 16 + 2 * own - 2
    with model.engine(num_blocks, host_blocks=host_blocks) as lab:
        (first,), members = lab.generate(request(ids["chat"], TOKENS), request(ids["code"], TOKENS, n=2))
    assert first.tokens == texts["chat"]
    assert [one.tokens for one in members] == [texts["code"]] * 2
    for member in members:
        assert (member.timeline.swaps > 0) == (host_blocks > 0)
        assert (member.timeline.recomputes > 0) == (host_blocks == 0)


def drawn(samples: list[Sample]) -> list[list[int]]:
    return [one.tokens for one in samples]


def test_draws_depend_on_seed_sample_and_position_alone(model: LabModel, ids: dict[str, list[int]]) -> None:
    """B68: alone, among others, preempted either way, and resumed elsewhere from the prompt and the tokens so far."""
    prompt, tokens = ids["code"], 24

    def sampled(**fields: object) -> worker_pb2.GenerateRequest:
        return request(prompt, tokens, temperature=1.0, seed=7, n=4, **fields)

    others = [request(ids[name], tokens, temperature=1.0, seed=1) for name in ("chat", "digits", "short")]
    with model.engine(200) as lab:
        (alone,) = lab.generate(sampled())
        *_, among_others = lab.generate(*others, sampled())
        (unseeded,) = lab.generate(request(prompt, 4, temperature=1.0, n=4))
        begun = [worker_pb2.ResumedSample(index=index, token_ids=alone[index].tokens[: 5 * index]) for index in (1, 2)]
        (resumed,) = lab.generate(sampled(resume=worker_pb2.Resume(seed=7, samples=begun)))
    assert len({tuple(text) for text in drawn(alone)}) == 4
    assert drawn(among_others) == drawn(alone)
    assert len({tuple(text) for text in drawn(unseeded)}) >= 2
    assert drawn(unseeded) != [text[:4] for text in drawn(alone)]
    so_far = [[], alone[1].tokens[:5], alone[2].tokens[:10], []]
    assert [start + one.tokens for start, one in zip(so_far, resumed, strict=True)] == drawn(alone)
    # The chat's tokens take what the four samples need in the end, but for two blocks.
    for host_blocks in (0, 64):
        own = -(-(len(prompt) % 16 + tokens) // 16)
        num_blocks = -(-(len(ids["chat"]) + tokens) // 16) + len(prompt) // 16 + 4 * own - 2
        with model.engine(num_blocks, host_blocks=host_blocks) as lab:
            _, preempted = lab.generate(request(ids["chat"], tokens), sampled())
        assert drawn(preempted) == drawn(alone)
        assert all(one.timeline.recomputes + one.timeline.swaps > 0 for one in preempted)


def test_the_best_of_several_samples_are_those_of_the_greatest_probability(
    model: LabModel, ids: dict[str, list[int]]
) -> None:
    fields = {"temperature": 1.0, "seed": 11}
    with model.engine(100) as lab:
        (everybody,) = lab.generate(request(ids["short"], 12, **fields, n=5, logprobs=0))
        (best,) = lab.generate(request(ids["short"], 12, **fields, n=2, best_of=5))
    ranked = sorted(everybody, key=lambda one: -one.cumulative_logprob)
    assert drawn(best) == drawn(ranked[:2])
    assert all(one.cumulative_logprob < 0 for one in everybody)


@pytest.fixture(scope="module")
def searched(demo_model: Path) -> dict[str, dict[str, list[list[int]]]]:
    return beams(demo_model, demo_model.parent)


@pytest.mark.parametrize(("case", "tight"), [("plain", False), ("early, long texts", True)])
def test_beams_find_the_texts_of_transformers(
    model: LabModel, ids: dict[str, list[int]], searched: dict[str, dict[str, list[list[int]]]], case: str, tight: bool
) -> None:
    options = BEAM_CASES[case]
    search = sampling_pb2.BeamSearch(
        width=options["num_beams"],
        length_penalty=options.get("length_penalty"),
        early_stopping=options.get("early_stopping", False),
    )
    asked = []
    for name in BEAM_PROMPTS:
        one = request(ids[name], options["max_new_tokens"], n=4, beam_search=search)
        one.stop.ignore_eos = False
        asked.append(one)
    # Together they hold a block or two per beam beside their prompts: 12 blocks of prompt and at most 3 x 4 x 3.
    with model.engine(20 if tight else 100) as lab:
        found = lab.generate(*asked)
        preemptions = lab.engine.statistics.preemptions
    assert [drawn(row) for row in found] == [searched[case][name] for name in BEAM_PROMPTS]
    assert (preemptions > 0) == tight
