"""The demo model's own files: ids, texts and rendered conversations are those of transformers' AutoTokenizer."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

USER = {"role": "user", "content": "Grüße, a  2018 🙂?"}


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(demo_model)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(max_size=40), st.text("a 2\n<|im_start|>🙂안", max_size=40)))
def test_encodes_and_decodes(demo_tokenizer: Tokenizer, reference: PreTrainedTokenizerBase, text: str) -> None:
    ids = demo_tokenizer.encode(text)
    assert ids == reference.encode(text)
    for skip in (True, False):
        assert demo_tokenizer.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    "messages",
    [[USER], [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Hallo. "}, USER]],
)
def test_renders(demo_tokenizer: Tokenizer, reference: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> None:
    template = ChatTemplate(demo_tokenizer.chat_template, demo_tokenizer.special_tokens)
    text = template.render(messages)
    assert text == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert demo_tokenizer.encode(text, add_special_tokens=False) == expected


def test_ids_of_the_demo_model(demo_tokenizer: Tokenizer) -> None:
    """Known of SmolLM2-Instruct: 49,152 tokens, bos <|im_start|> 1, eos <|im_end|> 2, no bos added."""
    assert (demo_tokenizer.vocab_size, demo_tokenizer.bos_token_id, demo_tokenizer.eos_token_ids) == (49152, 1, (2,))
    assert demo_tokenizer.token(1) == "<|im_start|>"
    assert demo_tokenizer.encode("<|im_end|>") == [2]
