"""How much text the prompts of a completion body may hold."""

import pytest

from gateway.errors import InvalidRequest
from gateway.http.completion_prompts import prompts_of
from gateway.models import ServedModel
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer

pytestmark = pytest.mark.unit


async def test_the_bytes_of_all_texts_are_counted_and_no_characters(
    toy_tokenizer: Tokenizer, toy_template: ChatTemplate
) -> None:
    model = ServedModel("bytes", "f", 258, 1000, toy_tokenizer, toy_template)
    document = {"prompt": ["ä" * 4, "ä" * 4]}  # 8 bytes each
    assert len(await prompts_of(model, document, max_bytes=16)) == 2
    with pytest.raises(InvalidRequest) as refused:
        await prompts_of(model, document, max_bytes=15)
    assert refused.value.problems == {"prompt": "16 bytes found, allowed are at most 15"}
