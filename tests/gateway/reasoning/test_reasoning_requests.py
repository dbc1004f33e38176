"""What a request says of reasoning: where its prompt leaves off, and which texts its grammar lets a model write.

The grammars are compiled by the worker's own compiler.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from byte_vocabulary import byte_level
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken

from gateway import prompts
from gateway.grammars import Grammar, one_of
from gateway.models import ServedModel
from gateway.parameters import Call, Parameters, validate
from gateway.reasoning.splitter import Phase
from gateway.reasoning.thinking import Thinking, thinking_of
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from gateway.tools.calling import calling_of
from gateway.tools.functions import REQUIRED, Function
from model_worker.sampling.grammar import LIMITS

pytestmark = pytest.mark.unit

END = "</s>"

# Models differ in what opens the reasoning: the model, the prompt, or either, as a variable says.
BY_MODEL = """{% for message in messages %}[{{ message.role }}]
{{- message.content.split('</think>')[-1] if not loop.last else message.content }}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
BY_PROMPT = BY_MODEL.replace("[assistant]", "[assistant]<think>\n")
BY_VARIABLE = BY_MODEL.replace(
    "[assistant]",
    "[assistant]{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
)


def model_with(template: str, *added: str, special: bool = True) -> ServedModel:
    """A model whose tokens are bytes, and added ones, which are special or not."""
    backend = byte_level([END])
    backend.add_tokens([AddedToken(token, special=special, normalized=False) for token in added])
    files = {"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": b'{"eos_token": "</s>"}'}
    tokenizer = Tokenizer(files)
    return ServedModel("m", "f", tokenizer.vocab_size, 10_000, tokenizer, ChatTemplate(template, {}))


def thinking(template: str, *texts: str, continues: bool = False, **given: Any) -> Thinking | None:
    """Of a conversation whose texts are the user's and the assistant's in turns."""
    model = model_with(template)
    parameters = validate(Call.CHAT, given, model.vocab_size)
    roles = ("user", "assistant") * len(texts)
    conversation = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    prompt = asyncio.run(
        prompts.from_messages(
            model, conversation, 10_000, continue_final_message=continues, variables=parameters.template_variables
        )
    )
    return thinking_of(model, prompt, parameters, "auto")


def started(*given: Any, **more: Any) -> Phase:
    found = thinking(*given, **more)
    assert found is not None
    return found.start


def test_a_prompt_tells_where_the_answer_starts() -> None:
    assert started(BY_MODEL, "hi") is Phase.OPENS
    assert started(BY_PROMPT, "hi") is Phase.BEGINS
    # What a user writes of marks is no mark.
    for template, phase in ((BY_MODEL, Phase.OPENS), (BY_PROMPT, Phase.BEGINS)):
        assert started(template, "what is <think>", "a mark", "and </think>?") is phase
    # Reasoning that is switched off is closed by the prompt, whichever way it was said.
    assert started(BY_VARIABLE, "hi") is Phase.OPENS
    assert started(BY_VARIABLE, "hi", chat_template_kwargs={"enable_thinking": False}) is Phase.ENDS
    assert started(BY_VARIABLE, "hi", reasoning_effort="none") is Phase.ENDS
    assert started(BY_VARIABLE, "hi", reasoning_effort="low") is Phase.OPENS
    both = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    assert started(BY_VARIABLE, "hi", **both) is Phase.OPENS


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        ("<think>Let me", Phase.REASONS),
        ("<think>\n", Phase.BEGINS),
        ("<think>Hm.</think>\n\n", Phase.ENDS),
        ("<think>Hm.</think>The", Phase.ANSWERS),
        ("The", Phase.ANSWERS),
        ("", Phase.OPENS),
        ("  ", Phase.OPENS),
        # Text of an answer about marks.
        ("The mark <think> opens", Phase.ANSWERS),
        ("<think>a</think>Tag <think>", Phase.ANSWERS),
        ("Close it with </think>", Phase.ANSWERS),
    ],
)
def test_a_message_is_gone_on_with_in_its_own_phase(last: str, phase: Phase) -> None:
    assert started(BY_PROMPT, "what is <think>?", last, continues=True) is phase


def test_reasoning_is_content_where_nobody_wants_it_told_apart() -> None:
    assert thinking("{{ messages }}", "hi") is None
    assert thinking(BY_MODEL, "hi", separate_reasoning=False) is None
    kept = thinking(BY_MODEL, "hi", include_reasoning=False)
    assert kept is not None
    assert not kept.told


def compiled(model: ServedModel, grammar: Grammar) -> Callable[[str], bool]:
    """Whether a model could write a text and end there."""
    tokenizer = model.tokenizer
    vocabulary = LLTokenizer(tokenizer._backend.to_str(), n_vocab=model.vocab_size, eos_token=tokenizer.id_of(END))
    start = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar.source), log_level=0, limits=LIMITS)
    assert not start.is_error(), start.get_error()

    def accepts(text: str) -> bool:
        matcher, ids = start.deep_copy(), tokenizer.encode(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return accepts


SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}'
)
TOOL_CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("grammar", "content"),
    [
        (Grammar("json_schema", SCHEMA), '{"a": 1}'),
        (Grammar("json_object", ""), '{"b": [1, 2]}'),
        (Grammar("regex", "a/+b"), "a//b"),
        (one_of("choice", ["<yes>", "no"]), "<yes>"),
        (None, TOOL_CALL),
    ],
)
@pytest.mark.parametrize("kind", ["text", "special", "added"])
@pytest.mark.parametrize("template", [BY_MODEL, BY_PROMPT])
def test_a_grammar_holds_for_the_content(template: str, kind: str, grammar: Grammar | None, content: str) -> None:
    """Whether the marks are text, special tokens, or added ones that are none, as Qwen's are."""
    marks = () if kind == "text" else ("<think>", "</think>", "<tool_call>", "</tool_call>")
    model = model_with(template, *marks, special=kind == "special")
    parameters = Parameters()
    if grammar is None:
        parameters = Parameters(tools=(Function("f"),), tool_choice=REQUIRED)
        calling = calling_of(model, parameters, "hermes")
        assert calling is not None
        grammar = calling.grammar
    assert grammar is not None
    conversation = [{"role": "user", "content": "hi"}]
    prompt = asyncio.run(prompts.from_messages(model, conversation, 1000, continue_final_message=False))
    found = thinking_of(model, prompt, parameters, "auto")
    assert found is not None
    whole = found.before(grammar)
    assert whole.parameter == grammar.parameter
    thought = "" if template is BY_PROMPT else "<think>"
    thought += "\nHm, { or <yes>?\n</think>"
    accepts = compiled(model, whole)
    for gap in ("", "\n\n"):
        assert accepts(thought + gap + content)
    # A model that is free not to reason answers at once; one that has begun comes to its answer, and to nothing else.
    assert accepts(content) is (template is BY_MODEL)
    for wrong in (f"{thought}So: {content}", f"{thought}{content}x", thought, f"So: {content}"):
        assert not accepts(wrong)


def test_a_prompt_that_has_closed_the_reasoning_leaves_its_grammar_alone() -> None:
    found = thinking(BY_VARIABLE, "hi", reasoning_effort="none")
    assert found is not None
    grammar = Grammar("json_schema", SCHEMA)
    assert found.before(grammar) is grammar
