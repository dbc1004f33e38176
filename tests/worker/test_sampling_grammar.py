"""Grammars: every text that is sampled matches, whatever the logits say, alone and in a batch, and when resumed."""

import json
import re
import time
from typing import Any

import pytest
import torch
from byte_vocabulary import END, VOCAB, byte_tokenizer
from llguidance import LLTokenizer
from sampling_reference import Row
from tokenizers import Tokenizer

from gateway.grammars import MAX_CHOICES, one_of
from model_worker.sampling.grammar import FIRST_MASK_EFFORT, MAX_STATES, GrammarCompiler, GrammarError
from model_worker.sampling.params import SamplingParams, StopConditions
from model_worker.sampling.sampler import ALL_BANNED, Sampler

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.to_str(), VOCAB, [END])


def generate(rows: list[Row], most: int = 200) -> None:
    """Sample all rows, with logits that know nothing of a grammar, until each has ended."""
    sampler = Sampler()
    for step in range(most):
        live = [row for row in rows if row.tokens[-1] != END]
        if not live:
            return
        for row, one in zip(live, sampler.sample(noise(live), live), strict=True):
            assert not one.problem, (step, row.tokens)
            row.tokens.append(one.token)
    raise AssertionError(f"no end after {most} tokens")


def noise(rows: list[Row]) -> torch.Tensor:
    """Logits that depend on a row's tokens and seed alone."""
    seeds = [1_000 * len(row.tokens) + row.sampling.seed for row in rows]
    return torch.stack([torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def text(tokenizer: Tokenizer, row: Row) -> str:
    return str(tokenizer.decode(row.tokens[row.prompt_length :]))


SCHEMA = {
    "type": "object",
    "properties": {
        "on": {"type": "boolean"},
        "kind": {"enum": ["cat", "octopus"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 10, "maximum": 99}, "maxItems": 3},
    },
    "required": ["on", "kind", "sizes"],
    "additionalProperties": False,
}


def test_texts_match_their_grammars_in_one_batch(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    schema = compiler.compile("json_schema", json.dumps(SCHEMA))
    expression = compiler.compile("regex", "(ab){2,4}-(yes|no)")
    lark = compiler.compile("lark", 'start: "x" /[0-9]{2}/ tail\ntail: "é" | "yes"')
    grammars = [schema, expression, lark] * 4
    rows = [Row(SamplingParams(seed=seed, grammar=grammar)) for seed, grammar in enumerate(grammars)]
    generate(rows)
    for place, row in enumerate(rows):
        made = text(tokenizer, row)
        if place % 3 == 0:
            value = json.loads(made)
            assert (set(value), type(value["on"]), value["kind"] in ("cat", "octopus")) == (
                set(SCHEMA["required"]),
                bool,
                True,
            )
            assert all(10 <= size <= 99 for size in value["sizes"])
        else:
            assert re.fullmatch("(ab){2,4}-(yes|no)" if place % 3 == 1 else "x[0-9]{2}(é|yes)", made), made
    # A resumed row has its tokens and no state, and goes on in the same way.
    whole = rows[0]
    resumed = Row(whole.sampling, whole.tokens[:9], whole.prompt_length)
    generate([resumed])
    assert resumed.tokens == whole.tokens


def test_any_json_object_is_an_object(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    # A bias keeps the random text short: quotes, braces and the end are likely.
    quote, brace = tokenizer.encode('"}').ids
    likely = ((quote, 9.0), (brace, 9.0), (END, 50.0))
    rows = [
        Row(SamplingParams(seed=seed, grammar=compiler.compile("json_object", ""), logit_bias=likely))
        for seed in range(3)
    ]
    generate(rows)
    assert all(isinstance(json.loads(text(tokenizer, row)), dict) for row in rows)


def test_rows_without_a_grammar_do_not_notice(compiler: GrammarCompiler) -> None:
    free, bound = Row(SamplingParams(0)), Row(SamplingParams(0, grammar=compiler.compile("regex", "a")))
    logits = torch.zeros(2, VOCAB)
    logits[:, VOCAB - 1] = 5.0  # padding of the vocabulary, which no grammar knows
    unbound, matched = Sampler().sample(logits, [free, bound])
    assert unbound.token == VOCAB - 1
    assert matched.token != VOCAB - 1


def test_tokens_that_cannot_match_leave_no_token(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    grammar = compiler.compile("regex", "[ab]+")
    resumed = Row(SamplingParams(0, grammar=grammar), [0, *tokenizer.encode("aXa").ids], 1)
    assert Sampler().sample(torch.zeros(1, VOCAB), [resumed])[0].problem == ALL_BANNED + "the grammar"
    early = Row(SamplingParams(0, grammar=compiler.compile("regex", "")), stop=StopConditions(frozenset({END}), 1))
    assert Sampler().sample(torch.zeros(1, VOCAB), [early])[0].problem == ALL_BANNED + "min_tokens and the grammar"


@pytest.mark.parametrize(
    ("kind", "source", "said"),
    [
        ("json_schema", "{", "no JSON"),
        ("json_schema", "[" * 100_000, "no JSON"),
        ("json_schema", "3", "a schema is a JSON object"),
        ("json_schema", '{"type": "octopus"}', "octopus"),
        ("regex", "([", "regex parse error: unclosed character class"),
        ("regex", "x" * 1000 + "\n(", "unclosed group"),
        ("lark", "start: nothing", "nothing"),
        ("", "", "no notation"),
    ],
)
def test_what_is_no_grammar_is_named_in_a_line(compiler: GrammarCompiler, kind: str, source: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        compiler.compile(kind, source)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) <= 200


VAST = "(a{1000}){1000}"


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", VAST),
        ("regex", f"[xy]{VAST}"),  # its first mask is simple, its second is not
        ("regex", "(a{1,1000}){1000}"),
        ("regex", "|".join(f"w{place * 7919 % 99991}" for place in range(50_000))),
        ("lark", f"start: /{VAST}/"),
        (
            "json_schema",
            json.dumps(
                {"type": "object", "properties": {"a" * 500: {"pattern": f"^{VAST}$"}}, "required": ["a" * 500]}
            ),
        ),
    ],
)
def test_what_is_too_complex_is_refused_for_a_bounded_effort(compiler: GrammarCompiler, kind: str, source: str) -> None:
    begun = time.thread_time()
    with pytest.raises(GrammarError, match=f"^too complex: allowed are {FIRST_MASK_EFFORT} units"):
        compiler.compile(kind, source)
    assert time.thread_time() - begun < 3  # 0.2 s; more than 1 s of a quick machine without limits


TYPES = ["string", "integer", "boolean"]
WIDE = {f"property_{place}": {"type": TYPES[place % 3]} for place in range(200)}
CELLS = {"type": "array", "items": {"type": "array", "items": {"type": "number", "minimum": -1e5}, "maxItems": 100}}
TAGS = [f"{place * 7919 % 1000} is a value {place}" for place in range(500)]
FORMATS = {name: {"type": "string", "format": name} for name in ("email", "date", "date-time", "uuid", "ipv6", "uri")}
PATTERNS = {
    "email": {"type": "string", "pattern": r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$"},
    "date": {"type": "string", "pattern": r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"},
    "note": {"type": "string", "minLength": 10, "maxLength": 5000},
}


def of(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", of(WIDE)),
        ("json_schema", {"type": "object", "properties": WIDE}),
        (
            "json_schema",
            of({"table": CELLS, "tags": {"type": "array", "items": {"enum": TAGS}}, "tag": {"enum": TAGS}}),
        ),
        ("json_schema", of(FORMATS)),
        ("json_schema", of(PATTERNS)),
        ("json_schema", {"anyOf": [of({f"tool_{place}": of(WIDE | FORMATS)}) for place in range(8)]}),
        ("lark", one_of("choice", [f"{place * 7919 % 10007} {'text ' * 80}" for place in range(MAX_CHOICES)]).source),
        ("regex", r"(\w+\s?){1,100}\."),
        ("regex", "a{2000}|(.|\n){1,20000}"),
    ],
)
def test_large_grammars_of_real_life_stay_within_the_limits(compiler: GrammarCompiler, kind: str, source: Any) -> None:
    grammar = compiler.compile(kind, source if isinstance(source, str) else json.dumps(source))
    rows = [Row(SamplingParams(seed=seed, grammar=grammar)) for seed in range(2)]
    sampler = Sampler()
    for _ in range(60):
        for row, one in zip(rows, sampler.sample(noise(rows), rows), strict=True):
            assert not one.problem
            row.tokens.append(one.token)
        rows = [row for row in rows if row.tokens[-1] != END]
        if not rows:
            break


@pytest.mark.parametrize("vast", [VAST, "(a{3000}b){3000}", "((ab){1000}){1000}", "a{100000}"])
def test_a_mask_that_becomes_too_complex_ends_its_text_alone(
    tokenizer: Tokenizer, compiler: GrammarCompiler, vast: str
) -> None:
    # Ten free letters hide the rest from who tries the start of a text.
    hidden = Row(SamplingParams(0, grammar=compiler.compile("regex", f"[xy]{{10}}{vast}")))
    simple = Row(SamplingParams(0, grammar=compiler.compile("regex", "z{30}")))
    begun = time.thread_time()
    for _ in range(20):
        ended, other = Sampler().sample(torch.zeros(2, VOCAB), [hidden, simple])
        assert not other.problem
        simple.tokens.append(other.token)
        if ended.problem:
            break
        hidden.tokens.append(ended.token)
    assert ended.problem == ALL_BANNED + "the grammar"
    assert re.fullmatch("[xy]{10}[ab]*", text(tokenizer, hidden))
    assert time.thread_time() - begun < 2  # 0.2 s


def test_a_counted_string_is_as_long_as_its_states_allow(compiler: GrammarCompiler) -> None:
    """A state for each character: 20,000 are less than the bound, and a schema may well ask for them."""
    assert MAX_STATES > 2 * 20_000
    grammar = compiler.compile("json_schema", json.dumps({"type": "string", "maxLength": 20_000}))
    row = Row(SamplingParams(0, grammar=grammar))
    for _ in range(40):
        (one,) = Sampler().sample(torch.zeros(1, VOCAB), [row])
        assert not one.problem
        row.tokens.append(one.token)


def test_the_vocabulary_is_read_before_anybody_waits_and_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[LLTokenizer] = []

    def reading(*given: Any, **named: Any) -> LLTokenizer:
        read.append(LLTokenizer(*given, **named))
        return read[-1]

    monkeypatch.setattr("model_worker.sampling.grammar.LLTokenizer", reading)
    compiler = GrammarCompiler(tokenizer.to_str(), VOCAB, [END])
    compiler.prepare()
    assert len(read) == 1
    compiler.compile("regex", "a")
    assert len(read) == 1


def test_a_model_without_vocabulary_has_no_grammars(tokenizer: Tokenizer) -> None:
    for broken in (GrammarCompiler(None, VOCAB, [END]), GrammarCompiler(tokenizer.to_str(), VOCAB, [])):
        broken.prepare()  # no error yet
        with pytest.raises(GrammarError, match=r"no tokenizer\.json or no end-of-sequence"):
            broken.compile("regex", "a")
    with pytest.raises(GrammarError, match="no grammar for this vocabulary"):
        GrammarCompiler("{}", VOCAB, [END]).compile("regex", "a")
