"""Calls in each family's syntax are found, whole and in pieces; what is no call is text, all of it."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.families import FAMILIES, family_of
from gateway.tools.parser import Argued, Begun, Broken, Ended, Event, Said

pytestmark = pytest.mark.property

NAMES = frozenset({"f", "get_weather", "a.b-c"})
EVERY = sorted(FAMILIES)

H, M, T = "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"


def joined(events: Iterable[Event]) -> list[Event]:
    """Events as one: adjacent texts, and adjacent arguments of a call, together."""
    made: list[Event] = []
    for event in events:
        match made[-1] if made else None, event:
            case Said(before), Said(text):
                made[-1] = Said(before + text)
            case Argued(index, before), Argued(_, text):
                made[-1] = Argued(index, before + text)
            case _:
                made.append(event)
    return made


def read(family: str, pieces: Sequence[str]) -> list[Event]:
    parser = FAMILIES[family].parser(NAMES)
    events = [event for piece in pieces for event in parser.push(piece)]
    return joined([*events, *parser.finish()])


def outcome(events: Iterable[Event]) -> tuple[str, list[tuple[str, Any]]]:
    """The text, and the calls that are complete."""
    text, names, arguments, calls = "", dict[int, str](), dict[int, str](), list[tuple[str, Any]]()
    for event in events:
        match event:
            case Said(more) | Broken(_, more):
                text += more
            case Begun(index, name):
                assert index not in names
                names[index] = name
            case Argued(index, more):
                arguments[index] = arguments.get(index, "") + more
            case Ended(index):
                calls.append((names[index], json.loads(arguments[index])))
    return text, calls


PARIS = ("get_weather", {"city": "Paris"})


@pytest.mark.parametrize(
    ("family", "written", "text", "calls"),
    [
        # Hermes.
        ("hermes", H + '\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
        ("hermes", f'Well.\n{H}{{"name":"f","arguments":{{}}}}</tool_call>', "Well.\n", [("f", {})]),
        (
            "hermes",
            f'{H}{{"name": "f"}}</tool_call>\n{H}{{"arguments": {{"a": [1]}}, "name": "f"}}</tool_call>\n',
            "",
            [("f", {}), ("f", {"a": [1]})],
        ),
        ("hermes", f'{H}{{"name": "f", "arguments": null, "id": 7}}', "", [("f", {})]),
        ("hermes", f'{H}{{"name": "f", "arguments": "{{\\"a\\": 1}}"}}</tool', "", [("f", {"a": 1})]),
        ("hermes", f'{H}{{"name": "f"}}</tool_call> Done.', " Done.", [("f", {})]),
        ("hermes", f'<{H}{{"name": "f"}}</tool_call>', "<", [("f", {})]),
        ("hermes", f'{H}{H}{{"name": "f"}}</tool_call>', H, [("f", {})]),
        # Llama.
        ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
        ("llama3_json", f' {T}{{"name": "f", "parameters": {{}}}}; {{"name": "f"}}', "", [("f", {}), ("f", {})]),
        ("llama3_json", '{"name": "f"};\n', "", [("f", {})]),
        ("llama3_json", '{"name": "f"} and so on', " and so on", [("f", {})]),
        # Mistral.
        (
            "mistral",
            M + '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "f", "arguments": {}}]',
            "",
            [PARIS, ("f", {})],
        ),
        ("mistral", f'So: {M} [ {{"name": "f", "id": "123456789"}} ]!', "So: !", [("f", {})]),
        ("mistral", f'{M}[{{"name": "f"}}', "", [("f", {})]),
        ("mistral", f'{M}get_weather[ARGS]{{"city": "Paris"}}{M}f{{}}', "", [PARIS, ("f", {})]),
        ("mistral", f'{M}a.b-c[CALL_ID]123456789[ARGS]{{"a": {{}}}}', "", [("a.b-c", {"a": {}})]),
        # Python.
        ("pythonic", "[get_weather(city='Paris')]", "", [PARIS]),
        ("pythonic", '<|python_start|>[f(), f(a=[1, (2,)], b={"c": None}, d=true)]<|python_end|>', "",
         [("f", {}), ("f", {"a": [1, [2]], "b": {"c": None}, "d": True})]),
        ("pythonic", "[f(a=')]', b=\"\\\"\", c=-1.5e3)]", "", [("f", {"a": ")]", "b": '"', "c": -1500.0})]),
        ("pythonic", '[f(a="\\ud83d\\ude42")]', "", [("f", {"a": "🙂"})]),
        ("pythonic", " [ f(), ] ", "", [("f", {})]),
        ("pythonic", "[a.b-c(x=1)] So.", " So.", [("a.b-c", {"x": 1})]),
    ],
)  # fmt: skip
def test_calls_are_found(family: str, written: str, text: str, calls: list[tuple[str, Any]]) -> None:
    assert outcome(read(family, [written])) == (text, calls)


@pytest.mark.parametrize(
    ("family", "written"),
    [
        ("hermes", " \n"),
        ("hermes", f"Write {H} and then JSON"),
        ("hermes", f'{H}{{"name": "g", "arguments": {{}}}}</tool_call>'),
        ("hermes", f"{H}{{'name': 'f'}}</tool_call>"),
        ("hermes", f'{H}{{"arguments": {{}}}}</tool_call>'),
        ("hermes", f'{H}{{"name": "f", "arguments": [1]}}</tool_call>'),
        ("hermes", f'{H}{{"name": "f", "arguments": {{"a": 01}}}}</tool_call>'),
        ("hermes", f'{H}{{"name": "f", "arguments": {{"a": "b\nc"}}}}</tool_call>'),
        ("hermes", f'{H}{{"name": "f", "arguments": {{"a": 1'),
        ("hermes", f'{H}{{"name": "f", "arguments": {{}}, "name": "f"}}</tool_call>'),
        ("hermes", f'{H}{{"name": {"1" * 5000}}}</tool_call>'),
        ("hermes", f'{H}{{"name": "f", "arguments": {"[" * 300}'),
        ("hermes", f"  {H[:-1]}"),
        ("hermes", f"\n{H}\n"),
        ("llama3_json", '{"name": "Ada", "age": 36}'),
        ("llama3_json", 'Call {"name": "f", "parameters": {}}'),
        ("llama3_json", f"{T}print(1)"),
        ("llama3_json", "<|pyth"),
        ("llama3_json", '{"name": "f", "parameters": {"a": }}'),
        ("mistral", f"{M} is a mark"),
        ("mistral", f"{M}[1]"),
        ("mistral", f'{M}g[ARGS]{{"a": 1}}'),
        ("mistral", f'{M}f[ARGS]{{"a": nil}}'),
        ("mistral", f"{M}{'f' * 500}"),
        ("pythonic", "[1] and [f()]"),
        ("pythonic", "[f](x)"),
        ("pythonic", "[]"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(a=g())]"),
        ("pythonic", "[f(a=1, a=2)]"),
        ("pythonic", "[f(**{})]"),
        ("pythonic", "[f(a=b'x')]"),
        ("pythonic", "[f(a=1e999)]"),
        ("pythonic", "[f(a='\\ud83d')]"),
        ("pythonic", "[f(a={1: 2})]"),
        ("pythonic", f"[f(a={'1' * 5000})]"),
        ("pythonic", f"[f(a={'-' * 100_000}1)]"),
        ("pythonic", f"[f(a={'(' * 300}"),
        ("pythonic", "[f(a='"),
    ],
)
def test_what_is_no_call_is_text_without_a_letter_lost(family: str, written: str) -> None:
    assert outcome(read(family, [written])) == (written, [])


def test_a_call_that_breaks_after_it_began_is_taken_back() -> None:
    written = f'{H}{{"name": "f", "arguments": {{"a": '
    assert read("hermes", [f'Oh: {written}x"}}']) == [
        Said("Oh: "), Begun(0, "f"), Argued(0, '{"a": '), Broken(0, written), Said('x"}'),
    ]  # fmt: skip
    # The next call has a number of its own, and a broken one keeps the white space before it.
    events = read("hermes", [f' {written}x{H}{{"name": "f"}}'])
    assert events == [
        Begun(0, "f"), Argued(0, '{"a": '), Broken(0, f" {written}"), Said("x"),
        Begun(1, "f"), Argued(1, "{}"), Ended(1),
    ]  # fmt: skip


def test_arguments_stream_while_they_are_written() -> None:
    parser = FAMILIES["hermes"].parser(NAMES)
    told = [
        list(parser.push(piece))
        for piece in ("Hm. <tool", '_call>{"name": "f', '", "arguments": {"a', '": "b', '"}', "}</tool_call>")
    ]
    assert told == [
        [Said("Hm. ")],
        [],
        [Begun(0, "f"), Argued(0, '{"a')],
        [Argued(0, '": "b')],
        [Argued(0, '"}')],
        [Ended(0)],
    ]


SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z_]{1,6}x", fullmatch=True), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), min_size=1, max_size=3)
CUTS = st.lists(st.integers(1, 7), max_size=40)


def write(family: str, calls: Sequence[tuple[str, Any]], indent: int | None) -> str:
    def objects(key: str) -> list[str]:
        return [json.dumps({"name": name, key: given}, indent=indent, ensure_ascii=False) for name, given in calls]

    match family:
        case "hermes":
            return "\n".join(f"{H}\n{one}\n</tool_call>" for one in objects("arguments"))
        case "llama3_json":
            return "; ".join(objects("parameters"))
        case "mistral":
            return f"{M}[{', '.join(objects('arguments'))}]"
        case _:
            given = [(name, ", ".join(f"{key}={value!r}" for key, value in named.items())) for name, named in calls]
            return f"[{', '.join(f'{name}({named})' for name, named in given)}]"


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@given(st.sampled_from(EVERY), CALLS, st.sampled_from([None, 1]), CUTS)
def test_what_was_written_is_read(
    family: str, calls: list[tuple[str, Any]], indent: int | None, cuts: list[int]
) -> None:
    written = write(family, calls, indent)
    assert outcome(read(family, cut(written, cuts))) == ("", calls)


# Pieces of all syntaxes, whole and broken, in any order.
SHARDS = st.sampled_from(
    [H, "</tool_call>", "<", "tool_call>", M, "[TOOL", "[ARGS]", "[CALL_ID]", T, "<|python_start|>", "<|python_end|>",
     "[", "]", "{", "}", "(", ")", '"', "'", "\\", ",", ";", ":", "=", " ", "\n", "f", "f(", "f(a=1)", '{"name": "f"',
     "é🙂",
     '{"name": "f", "arguments": {"a": [1, "x"]}}', '"arguments": {', '"parameters": null', "12", "true", "text"]
)  # fmt: skip


@given(
    st.sampled_from(EVERY),
    st.lists(SHARDS | st.text(max_size=5), max_size=12),
    st.lists(st.integers(1, 9), max_size=60),
)
def test_any_chunking_gives_the_same(family: str, shards: list[str], cuts: list[int]) -> None:
    written = "".join(shards)
    whole = read(family, [written])
    assert read(family, cut(written, cuts)) == read(family, list(written)) == whole
    text, calls = outcome(whole)
    if not calls:
        assert text == written
    # Text comes in the order in which it was written, and nothing is made up.
    rest = iter(written)
    assert all(character in rest for character in text)


@pytest.mark.parametrize(
    ("setting", "template", "expected"),
    [
        ("auto", "{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("auto", "[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("auto", '{"name": function name, "parameters": dictionary of argument name', "llama3_json"),
        ("auto", "[func_name1(params_name1=params_value1, ...)]", "pythonic"),
        (
            "auto",
            'in the format {"name": function name, "parameters": dictionary of ... <|python_start|>',
            "llama3_json",
        ),
        ("auto", "<|python_start|>", "pythonic"),
        ("auto", "{{ messages }}", None),
        ("none", "<tool_call>", None),
        ("mistral", "<tool_call>", "mistral"),
    ],
)
def test_a_template_says_which_family(setting: Any, template: str, expected: str | None) -> None:
    assert family_of(setting, template) is (None if expected is None else FAMILIES[expected])
