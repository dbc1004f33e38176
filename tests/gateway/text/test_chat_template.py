"""Chat templates: the text transformers renders, errors with the template's own words, and no input that stalls."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from toy_tokenizers import byte_level
from transformers import PreTrainedTokenizerFast

from gateway.text.chat_template import MAX_TEMPLATE_CHARACTERS, ChatTemplate, ChatTemplateError
from gateway.text.template_sandbox import RenderLimits
from gateway.text.tokenizer import Tokenizer

# In the manner of ChatML models: a default system prompt, a header per message.
CHATML = """{%- if messages[0]['role'] != 'system' %}
    {{- '<|system|>You help.</s>\\n' }}
{%- endif %}
{% for message in messages %}
    {% generation %}
    {{- '<|' + message.role + '|>' + message['content'] + '</s>' + '\\n' }}
    {% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}"""

# In the manner of Llama 2 and Mistral: turns must alternate, text is trimmed, a system prompt joins the first turn.
ALTERNATING = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] | trim %}{% set turns = messages[1:] %}
{%- else %}{% set system = none %}{% set turns = messages %}{% endif %}
{%- if not turns %}{{ raise_exception('Only a system message: there is nothing to answer.') }}{% endif %}
{%- for message in turns %}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
  {%- endif %}
  {%- if message.role == 'user' %}
    {%- if loop.first and system %}[INST] {{ system }}

{{ message.content | trim }} [/INST]{% else %}[INST] {{ message.content | trim }} [/INST]{% endif %}
  {%- elif message.role == 'assistant' %} {{ message.content | trim }}{{ eos_token }}
  {%- else %}{{ raise_exception('Unknown role ' ~ message.role) }}{% endif %}
{%- endfor %}"""

# In the manner of models with tools: schemas as JSON, calls, results, parts, a date, macros, namespaces, loop controls.
TOOLS = """{%- macro show(content) %}
{%- if content is string %}{{ content }}{% else %}
  {%- for part in content %}{% if part.type != 'text' %}{% continue %}{% endif %}{{ part.text }}{% endfor %}
{%- endif %}
{%- endmacro %}
{%- set ns = namespace(calls=0) %}
{{- 'Today is ' + strftime_now('%Y') }}
{% if tools %}
{{ tools | length }} tools:{% for tool in tools %}

{{ tool | tojson(indent=2) }}
{%- endfor %}
{% endif %}
{% for message in messages %}
[{{ message.role }}{% if message.name is defined %} {{ message.name }}{% endif %}]
{%- if message.reasoning_content %}<think>{{ message.thinking }}</think>{% endif %}
{%- if message.tool_calls %}
  {%- for call in message.tool_calls %}{% set ns.calls = ns.calls + 1 %}
    {{- '#%d ' % ns.calls }}{{ call.function | tojson }}{{ ',' if not loop.last }}
  {%- endfor %}
{%- elif message.tool_call_id %}{{ message.tool_call_id }} -> {{ show(message.content) }}
{%- else %}{{ show(message.content) }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}[assistant]{% if enable_thinking is defined and not enable_thinking %}quick{% endif %}
{% endif %}"""

# Names set inside a generation block are its own.
SCOPED = """{% set who = 'outer' %}{% for message in messages %}{% generation %}
{% set who = message.role %}{{ who }}: {{ message.content | string }}
{% endgeneration %}{{ who }}
{% endfor %}"""

TEMPLATES = {"scoped": SCOPED, "chatml": CHATML, "alternating": ALTERNATING, "tools": TOOLS}

SYSTEM = {"role": "system", "content": "  Be <brief> & 'kind'. "}
USER = {"role": "user", "content": "Grüße 🙂 <s> {{ 1 }}"}
ASSISTANT = {"role": "assistant", "content": " Hallo.  "}
CONVERSATIONS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ASSISTANT, USER],
    "answer begun": [USER, ASSISTANT],
    "null": [USER | {"name": None, "tool_calls": None}],
    "system only": [SYSTEM],
    "two users": [USER, USER],
    "unknown role": [USER, {"role": "wizard", "content": "x"}],
    "no content": [{"role": "user", "content": None}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image"}]}],
    "calls": [
        USER,
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"wo": "Köln", "n": [1, "<"]}}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "12 °C", "tool_call_id": "1", "name": "f"},
    ],
}
TOOL_SCHEMAS = [
    {"type": "function", "function": {"name": "f", "description": "où <ça>?", "parameters": {"type": "object"}}}
]


def both(source: str) -> tuple[ChatTemplate, PreTrainedTokenizerFast]:
    toy = byte_level()
    reference = PreTrainedTokenizerFast(
        tokenizer_object=toy.backend, bos_token="<s>", eos_token="</s>", chat_template=source
    )
    return ChatTemplate(source, toy.load().special_tokens), reference


@pytest.mark.model
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"add_generation_prompt": True, "tools": TOOL_SCHEMAS},
        {"add_generation_prompt": False, "continue_final_message": True},
    ],
    ids=["open", "closed", "tools", "continue"],
)
def test_renders_as_transformers(template: str, conversation: str, options: dict[str, object]) -> None:
    """Same text, or an error on both sides that carries the same message."""
    ours, reference = both(TEMPLATES[template])
    messages = CONVERSATIONS[conversation]
    expected, refusal = None, ""
    try:
        expected = reference.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:
        refusal = str(error)
    if expected is not None:
        assert ours.render(messages, **options) == expected
        return
    with pytest.raises(ChatTemplateError) as caught:
        ours.render(messages, **options)
    # About a final message that cannot be continued both have their own words; all else is the template's.
    assert refusal in str(caught.value) or "continue_final_message" in refusal


@pytest.mark.model
def test_the_comparison_compares_text() -> None:
    """Counts what the test above saw: a template that always failed on both sides would prove nothing."""
    refused: dict[str, list[str]] = {}
    for name, source in TEMPLATES.items():
        ours, _ = both(source)
        for conversation, messages in CONVERSATIONS.items():
            try:
                assert ours.render(messages)
            except ChatTemplateError:
                refused.setdefault(name, []).append(conversation)
    assert refused == {
        "chatml": ["no content", "parts", "calls"],
        "alternating": ["system only", "two users", "unknown role", "calls"],
    }


@pytest.mark.unit
def test_variables_and_time_reach_the_template() -> None:
    template = ChatTemplate(TOOLS, {}, now=lambda: datetime(1999, 12, 31))
    text = template.render([{"role": "user", "content": "hi"}], variables={"enable_thinking": False})
    assert text == "Today is 1999\n[user]hi[assistant]quick"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("source", "messages", "error", "line"),
    [
        (ALTERNATING, [SYSTEM], "Only a system message: there is nothing to answer.", 4),
        (ALTERNATING, [USER, USER], "Roles must alternate user/assistant/user/assistant/...", 7),
        (CHATML, [USER, {"role": "assistant"}], "'dict object' has no attribute 'content'", 6),
        ("\n{{ messages[0].content + 3 }}", [USER], 'TypeError: can only concatenate str (not "int") to str', 2),
        ("\n\n{% if x %}", [USER], "the chat template is broken: Unexpected end of template.", 3),
        ("{% macro f() %}\n{{ f() }}{% endmacro %}{{ f() }}", [USER], "maximum recursion depth exceeded", 2),
        ("{{ ''.__class__.mro }}", [USER], "access to attribute '__class__' of 'str' object is unsafe.", 1),
        ("{{ messages.append(1) }}", [USER], "access to attribute 'append' of 'list' object is unsafe.", 1),
    ],
)
def test_errors_name_the_cause_and_the_line(source: str, messages: list[dict[str, str]], error: str, line: int) -> None:
    """B72."""
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source, {}).render(messages)
    assert error in str(caught.value)
    assert caught.value.line == line


@pytest.mark.unit
def test_missing_and_oversized_templates() -> None:
    assert not ChatTemplate(None, {}).exists
    with pytest.raises(ChatTemplateError, match="the model has no chat template"):
        ChatTemplate(None, {}).render([USER])
    with pytest.raises(ChatTemplateError, match="no default chat template, only rag, tool_use"):
        ChatTemplate({"tool_use": "t", "rag": "r"}, {}).render([USER])
    with pytest.raises(ChatTemplateError, match="the chat template has 1048576 characters, above 131072"):
        ChatTemplate("{% for i in range(9) %}x{% endfor %}".ljust(1024 * 1024), {}).render([USER])
    assert ChatTemplate("x" * MAX_TEMPLATE_CHARACTERS, {}).render([USER]) == "x" * MAX_TEMPLATE_CHARACTERS


@pytest.mark.unit
def test_refuses_an_empty_conversation_and_two_endings() -> None:
    with pytest.raises(ChatTemplateError, match="at least one message"):
        ChatTemplate(CHATML, {}).render([])
    with pytest.raises(ChatTemplateError, match="continue_final_message excludes add_generation_prompt"):
        ChatTemplate(CHATML, {}).render([USER], continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="leaves out or changes the last message"):
        ChatTemplate("{{ messages[0].role }}", {}).render(
            [USER], add_generation_prompt=False, continue_final_message=True
        )


@pytest.mark.unit
def test_named_templates() -> None:
    template = ChatTemplate({"default": "d", "tool_use": "t"}, {})
    assert template.render([USER]) == "d"
    assert template.render([USER], tools=TOOL_SCHEMAS) == "t"
    assert ChatTemplate({"default": "d"}, {}).render([USER], tools=TOOL_SCHEMAS) == "d"


@pytest.mark.unit
def test_where_templates_are_read_from(tmp_path: Path) -> None:
    files = dict(byte_level().files)
    assert Tokenizer(files).chat_template is None
    files["tokenizer_config.json"] = json.dumps({"chat_template": "config"}).encode()
    assert Tokenizer(files).chat_template == "config"
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    files["tokenizer_config.json"] = json.dumps({"chat_template": named}).encode()
    assert Tokenizer(files).chat_template == {"default": "d", "tool_use": "t"}
    files["chat_template.jinja"] = "Grüße".encode()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert Tokenizer.from_folder(tmp_path).chat_template == "Grüße"


MEGABYTE = [{"role": "user", "content": "x" * 1_000_000}]
DOUBLING = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("source", "error"),
    [
        # 10^12 passes; the limit is 10,000.
        ("{% for a in messages[0].content %}{% for b in messages[0].content %}{% endfor %}{% endfor %}", "10000 steps"),
        # 99,999 megabytes, directly and collected in a macro; the limit is two megabytes.
        ("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}", "2000000 characters"),
        (
            "{% macro m() %}{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}{% endmacro %}{{ m() }}",
            "2000000 characters",
        ),
        # The text between the tags counts too: 9,000 passes of 1,000 characters.
        ("{% for i in range(9000) %}" + "y" * 1000 + "{% endfor %}", "2000000 characters"),
        # 2^100 calls without a loop.
        (DOUBLING, "10000 steps"),
        ("{% for i in range(10 ** 12) %}{% endfor %}", "Range too big"),
    ],
)
def test_no_input_stalls(source: str, error: str) -> None:
    """B72: a template is stopped."""
    template = ChatTemplate(source, {}, limits=RenderLimits(steps=10_000, characters=2_000_000, seconds=60))
    with pytest.raises(ChatTemplateError, match=error):
        template.render(MEGABYTE)


@pytest.mark.unit
def test_time_is_limited() -> None:
    """A clock that moves 1 s per look: started at 1 and 2, the third look of the loop is past the deadline of 3.5."""
    seconds = iter(range(1, 100))
    template = ChatTemplate(
        "{% for m in messages %}.{% endfor %}", {}, limits=RenderLimits(seconds=2.5), clock=lambda: float(next(seconds))
    )
    with pytest.raises(ChatTemplateError, match=r"takes longer than 2\.5 s"):
        template.render([USER] * 9)


@pytest.mark.unit
def test_a_long_conversation_fits_the_limits() -> None:
    """A thousand messages of five thousand characters: 5 MB render whole."""
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": "x" * 5000} for i in range(1000)]
    text = ChatTemplate(CHATML, {}).render(messages)
    assert text.count("x") == 5_000_000


@pytest.mark.unit
def test_renderings_do_not_share_a_budget() -> None:
    """Each takes 9 of 10 steps; a shared count would stop the second."""
    template = ChatTemplate("{% for i in messages %}{% endfor %}ok", {}, limits=RenderLimits(steps=10))
    assert [template.render([USER] * 9) for _ in range(3)] == ["ok"] * 3
