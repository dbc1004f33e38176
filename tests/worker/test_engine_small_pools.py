"""The engine on pools that hardly hold a request: it is served whole, or told what it lacks."""

import pytest
from engine_lab import LabModel, Unpriced, request
from tiny_checkpoints import VOCAB, tiny_checkpoint

from model_worker.engine.sequence import EndReason

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LabModel:
    return LabModel(tiny_checkpoint("llama", tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_one_or_two_blocks_serve_a_prompt_of_one_token(model: LabModel, num_blocks: int) -> None:
    """B77: up to the last token that fits: n blocks of 16 hold 16 n tokens, prompt included."""
    with model.engine(200) as lab:
        ((roomy,),) = lab.generate(request([5], 16 * num_blocks - 1))
    with model.engine(num_blocks) as lab:
        (first,), (second,) = lab.generate(request([5], 100), request([7], 3))
    assert (first.reason, first.tokens) == (EndReason.LENGTH, roomy.tokens)
    assert len(first.tokens) == 16 * num_blocks - 1
    assert (second.reason, len(second.tokens)) == (EndReason.LENGTH, 3)


@pytest.mark.parametrize("host_blocks", [0, 64], ids=["recompute", "swap"])
def test_a_prompt_that_gave_way_in_its_middle_has_all_its_log_probabilities(model: LabModel, host_blocks: int) -> None:
    """B40: 100 tokens in chunks of 4, beside four texts that grow."""
    # 11 blocks of 16: one for each text and 7 for the prompt. Each text wants a second one at its 17th token, when the
    # prompt has computed about 64 tokens in 4 blocks; 8 + 4 is too much, and the prompt came last.
    prompt = [(37 * place + 11) % VOCAB for place in range(100)]
    wanted = request(prompt, 4, logprobs=2, prompt_logprobs=2)
    with model.engine(100, max_chunk=4) as lab:
        ((undisturbed,),) = lab.generate(wanted)
    with model.engine(11, host_blocks=host_blocks, max_chunk=4, manager=Unpriced()) as lab:
        *_, (disturbed,) = lab.generate(*(request([token], 30) for token in (5, 6, 7, 8)), wanted)
    times = disturbed.timeline.recomputes, disturbed.timeline.swaps
    assert times == ((0, 1) if host_blocks else (1, 0))
    assert disturbed.tokens == undisturbed.tokens
    ours, theirs = ([*one.prompt_logprobs, *one.logprobs] for one in (disturbed, undisturbed))
    assert [entry.token for entry in ours] == [*prompt[1:], *undisturbed.tokens]
    for one, other in zip(ours, theirs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-5)
