"""What a family's grammar lets a model write, the family's parser reads: calls of the offered functions, that fit.

A random writer stands for the model: each token is drawn from those that the worker's compiler allows.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from byte_vocabulary import byte_level
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import AddedToken

from gateway.errors import InvalidRequest
from gateway.grammars import Grammar, one_of
from gateway.models import ServedModel
from gateway.parameters import Call, Parameters, validate
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from gateway.tools.calling import MAX_CALLS, Calling, calling_of
from gateway.tools.families import FAMILIES
from gateway.tools.functions import AUTO, NONE, REQUIRED, Freedom, Function, ToolChoice, named
from gateway.tools.parser import Argued, Begun, Ended, Said
from gateway.tools.structure import Spelling
from model_worker.sampling.grammar import LIMITS

pytestmark = pytest.mark.unit

END = "</s>"
MOST_TOKENS = 4000

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Lima", 'a "b" \\ é\n🙂']},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"$ref": "#/$defs/kind"},
        "exact": {"type": ["boolean", "null"]},
    },
    "required": ["city", "kind"],
    "$defs": {"kind": {"type": "array", "items": {"enum": [1, -2.5]}, "minItems": 1, "maxItems": 2}},
}
FUNCTIONS = (Function("get_weather", "tells it", SCHEMA), Function("stop"), Function("a-b", None, {"type": "object"}))


def model_with(*special: str, added: Sequence[str] = ()) -> ServedModel:
    """A model whose tokens are bytes, these special tokens, and other added ones."""
    backend = byte_level([END, *special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    files = {"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": b'{"eos_token": "</s>"}'}
    tokenizer = Tokenizer(files)
    return ServedModel("m", "f", tokenizer.vocab_size, 10_000, tokenizer, ChatTemplate("{{ messages }}", {}))


def write(model: ServedModel, grammar: Grammar, seed: int) -> str:
    """A random text of the grammar, that ends soon."""
    tokenizer = model.tokenizer
    end = tokenizer.id_of(END)
    vocabulary = LLTokenizer(tokenizer._backend.to_str(), n_vocab=model.vocab_size, eos_token=end)
    assert grammar.notation == "lark"
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar.source), log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    chance = random.Random(seed)
    mask = allocate_token_bitmask(1, model.vocab_size)
    ids: list[int] = []
    while len(ids) < MOST_TOKENS:
        fill_next_token_bitmask(matcher, mask)
        bits = np.unpackbits(mask.view(np.uint8), count=model.vocab_size, bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        token = end if end in allowed and chance.random() < 0.4 else chance.choice(allowed)
        assert matcher.consume_token(token)
        if token == end:
            return tokenizer.decode(ids, skip_special_tokens=False)
        ids.append(token)
    raise AssertionError("no end")


def accepts(model: ServedModel, grammar: Grammar, text: str) -> bool:
    """Whether a model could have written it and ended there."""
    tokenizer = model.tokenizer
    vocabulary = LLTokenizer(tokenizer._backend.to_str(), n_vocab=model.vocab_size, eos_token=tokenizer.id_of(END))
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar.source), log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def read(calling: Calling, text: str) -> list[tuple[str, Any]]:
    """The calls of a text that holds nothing else."""
    parser = calling.family.parser(calling.names)
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    ended = 0
    for event in (*parser.push(text), *parser.finish()):
        match event:
            case Begun(index, name):
                names[index] = name
            case Argued(index, more):
                arguments[index] = arguments.get(index, "") + more
            case Ended():
                ended += 1
            case Said() | _:
                raise AssertionError((event, text))
    assert ended == len(names)
    return [(name, json.loads(arguments[index])) for index, name in names.items()]


def check(name: str, given: dict[str, Any]) -> None:
    """That arguments fit their function's schema."""
    if name != "get_weather":
        assert given == {} or name == "a-b"
        return
    assert {"city", "kind"} <= given.keys() <= SCHEMA["properties"].keys()
    assert given["city"] in SCHEMA["properties"]["city"]["enum"]
    assert 1 <= len(given["kind"]) <= 2
    assert set(given["kind"]) <= {1, -2.5}
    assert given.get("days", 1) in range(1, 10)
    assert given.get("exact") in (True, False, None)


def parameters(functions: Sequence[Function], choice: ToolChoice, **more: Any) -> Parameters:
    return validate(Call.CHAT, {"tools": tuple(functions), "tool_choice": choice, **more}, 10)


@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("hermes", ()),
        ("hermes", ("<tool_call>", "</tool_call>")),
        ("llama3_json", ("<|python_tag|>",)),
        ("mistral", ()),
        ("mistral", ("[TOOL_CALLS]",)),
        ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
        ("pythonic", ("<|python_start|>", "<|python_end|>")),
    ],
)
def test_what_has_to_be_a_call_is_one(name: Any, special: Sequence[str]) -> None:
    model = model_with(*special)
    functions = [one for one in FUNCTIONS if name != "pythonic" or one.name != "a-b"]
    calling = calling_of(model, parameters(functions, REQUIRED), name)
    assert calling is not None
    assert calling.grammar is not None
    assert calling.shown == {model.tokenizer.id_of(mark) for mark in special}
    seen: set[str] = set()
    counts: set[int] = set()
    for seed in range(10):
        calls = read(calling, write(model, calling.grammar, seed))
        counts.add(len(calls))
        for function, given in calls:
            seen.add(function)
            check(function, given)
    assert seen == {function.name for function in functions}
    assert max(counts) > 1
    assert max(counts) <= MAX_CALLS

    for one in (
        parameters(functions, named("get_weather")),
        parameters(functions[:1], REQUIRED, parallel_tool_calls=False),
        parameters(functions, ToolChoice(Freedom.CALLS, frozenset({"get_weather"})), parallel_tool_calls=False),
    ):
        calling = calling_of(model, one, name)
        assert calling is not None
        assert calling.grammar is not None
        for seed in range(2):
            ((function, given),) = read(calling, write(model, calling.grammar, seed))
            assert function == "get_weather"
            check(function, given)


def test_a_free_answer_is_a_call_or_what_it_has_to_match() -> None:
    model = model_with()
    schema = Grammar("json_schema", '{"enum": ["yes", "no"]}')
    strict = [replace(one, strict=True) for one in FUNCTIONS]
    calling = calling_of(model, parameters(strict, AUTO, response_format=schema), "hermes")
    assert calling is not None
    assert calling.grammar is not None
    assert calling.grammar.parameter == "response_format"
    texts = {write(model, calling.grammar, seed) for seed in range(12)}
    answers = texts & {'"yes"', '"no"'}
    assert answers
    assert texts - answers
    for text in texts - answers:
        assert read(calling, text)


@pytest.mark.parametrize(
    ("grammar", "matches", "others"),
    [
        (Grammar("regex", r"[ab/]+\/\\/c" + "\n"), ["a/b/\\/c\n"], ["c", "", "a/\\/c"]),
        (Grammar("lark", 'start: x "}"\nx: /[0-9]+/'), ["12}"], ["}", "12"]),
        (one_of("at", ["yes", 'n"{o']), ["yes", 'n"{o'], ["no", ""]),
        # An answer may begin as a call does.
        (
            Grammar("json_object", ""),
            ["{}", '{"a": [1]}', '{"name": "Ada", "b": 3}', '{"name": "stopper"}'],
            ["[]", "{"],
        ),
        (Grammar("json_schema", '{"type": "integer"}'), ["7"], ["7.5", "{}"]),
    ],
)
def test_any_constraint_stands_beside_calls(grammar: Grammar, matches: Sequence[str], others: Sequence[str]) -> None:
    model = model_with()
    calling = calling_of(model, parameters([Function("stop")], AUTO, response_format=grammar), "llama3_json")
    assert calling is not None
    assert calling.grammar is not None
    for text in (*matches, '{"name": "stop", "parameters": {}}'):
        assert accepts(model, calling.grammar, text), text
    for text in others:
        assert not accepts(model, calling.grammar, text), text


CASES = {
    "hermes": ("<tool_call>\n{0}\n</tool_call>", '{{"name": "{0}", "arguments": {1}}}', "Well. "),
    "mistral": ("[TOOL_CALLS][{0}]", '{{"name": "{0}", "arguments": {1}}}', "Well. "),
    "llama3_json": ("{0}", '{{"name": "{0}", "parameters": {1}}}', ""),
}


@pytest.mark.parametrize("kind", ["special", "added"])
def test_the_compiler_takes_no_marks_for_text_but_those_that_are_spelled_as_such(kind: str) -> None:
    """Qwen's <tool_call> is an added token and no special one. Each token is written as the tokenizer writes it."""
    marks = ["<tool_call>", "</tool_call>", "<think>", "[TOOL_CALLS]", "[THINK]", "<a", "◁think▷"]
    model = model_with(*marks) if kind == "special" else model_with(added=marks)
    tokenizer = model.tokenizer
    vocabulary = LLTokenizer(tokenizer._backend.to_str(), n_vocab=model.vocab_size, eos_token=tokenizer.id_of(END))
    told = {mark for mark in marks if vocabulary.is_special_token(tokenizer.id_of(mark))}
    assert set(Spelling.of(tokenizer, marks).special_ids) == told
    assert len(told) == (len(marks) if kind == "special" else 3)
    # In the vocabulary and not added, a mark is text like any other.
    assert Spelling.of(tokenizer, ["a", "<other>"]).special_ids == {}


@pytest.mark.parametrize(
    ("name", "special", "added"),
    [
        ("hermes", (), ()),
        ("hermes", ("<tool_call>",), ()),
        ("hermes", (), ("<tool_call>", "</tool_call>")),
        ("mistral", ("[TOOL_CALLS]",), ()),
        ("mistral", (), ("[TOOL_CALLS]",)),
        ("llama3_json", (), ()),
    ],
)
def test_strict_functions_are_called_as_they_say_or_not_at_all(
    name: Any, special: Sequence[str], added: Sequence[str]
) -> None:
    model = model_with(*special, added=added)
    # No compiler knows the second one's schema, and it need not.
    odd = {"type": "object", "properties": {"a": {"type": "octopus"}}}
    functions = [Function("get_weather", None, SCHEMA, strict=True), Function("free", None, odd)]
    calling = calling_of(model, parameters(functions, AUTO), name)
    assert calling is not None
    assert calling.grammar is not None
    around, inside, before = CASES[name]

    def call(function: str, arguments: str) -> str:
        return before + around.format(inside.format(function, arguments))

    fits, free = '{"city": "Lima", "kind": [1]}', '{"whatever": ["it", "is"]}'
    for text in ("", "Hello.", "It is {1}, [2] or <3>.\n", call("get_weather", fits), call("free", free)):
        assert accepts(model, calling.grammar, text), text
    for arguments in ("{}", '{"city": "Rome", "kind": [1]}', '{"city": "Lima", "kind": [1], "more": 1}', free):
        assert not accepts(model, calling.grammar, call("get_weather", arguments)), arguments
    assert not accepts(model, calling.grammar, call("nobody", "{}"))


def test_strict_functions_are_called_as_they_say_in_python() -> None:
    model = model_with()
    functions = [Function("get_weather", None, SCHEMA, strict=True), Function("stop")]
    calling = calling_of(model, parameters(functions, AUTO), "pythonic")
    assert calling is not None
    assert calling.grammar is not None
    for text in ("", "Hello.", '[get_weather(city="Lima", kind=[1])]', "[stop()]"):
        assert accepts(model, calling.grammar, text), text
    for text in ('[get_weather(city="Rome", kind=[1])]', "[stop(a=1)]", "[get_weather()]"):
        assert not accepts(model, calling.grammar, text), text


def test_a_free_model_is_not_bound() -> None:
    calling = calling_of(model_with(), parameters(FUNCTIONS, AUTO), "hermes")
    assert calling is not None
    assert (calling.grammar, calling.most) == (None, None)
    assert calling_of(model_with(), parameters(FUNCTIONS, NONE), "hermes") is None
    assert calling_of(model_with(), Parameters(), "hermes") is None


def test_a_model_without_a_syntax_is_refused() -> None:
    for setting in ("auto", "none"):
        with pytest.raises(InvalidRequest) as caught:
            calling_of(model_with(), parameters(FUNCTIONS, AUTO), setting)  # type: ignore[arg-type]
        assert list(caught.value.problems) == ["tools"]


@pytest.mark.parametrize(
    "schema",
    [{"anyOf": [SCHEMA]}, {"properties": {"not-a-name": {}}}, {"properties": {"class": {}}}, {"properties": []}],
)
def test_python_needs_names_for_its_arguments(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        calling_of(model_with(), parameters([Function("f", None, schema)], REQUIRED), "pythonic")
    assert list(caught.value.problems) == ["tools[0]"]


def test_ids_have_the_form_that_templates_take() -> None:
    assert all(len(id_) == 9 and id_.isalnum() for id_ in {FAMILIES["mistral"].call_id() for _ in range(100)})
    assert len({FAMILIES["hermes"].call_id() for _ in range(100)}) == 100


def test_a_choice_holds_every_character() -> None:
    """All of ASCII with its controls, Latin-1's, what else ends a line, the edges of Unicode."""
    others = ["\u2028", "\u2029", "\ufeff", "\ufffd", "\uffff", "\U0010ffff", "\\n", "\\u0041"]
    choices = [f"a{character}b" for character in (*map(chr, range(256)), *others)]
    model, grammar = model_with(), one_of("at", choices)
    assert all(accepts(model, grammar, choice) for choice in choices)
    assert not accepts(model, grammar, "ab")
