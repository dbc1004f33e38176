"""The one table of request parameters, which gRPC and OpenAI HTTP both read.

A surface turns a request into ``{name: value}`` holding only what the caller gave; ``validate`` answers with all
problems at once, or with the values that a generation runs on.
"""

import enum
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import InvalidRequest
from gateway.grammars import Grammar
from gateway.parameter_kinds import (
    Biases,
    Boolean,
    Choice,
    Functions,
    Integer,
    Kind,
    Language,
    Number,
    Text,
    Texts,
    TokenIds,
    Variables,
    Word,
)
from gateway.reasoning import effort
from gateway.text.chat_template import GIVEN
from gateway.tools.functions import AUTO, TOOL_CHOICE, TOOLS, Freedom, Function, ToolChoice

# Errors travel in HTTP/2 trailers, of which clients accept 8 KiB: more problems than this are cut off.
MAX_PROBLEMS = 8

VARIABLES = "chat_template_kwargs"

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Call(enum.Flag):
    """The calls that take parameters."""

    GENERATE = enum.auto()
    CHAT = enum.auto()
    ANY = GENERATE | CHAT


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the table.

    Attributes:
        name: the field's name on every surface.
        kind: type and bounds.
        default: the value when the caller gives none.
        meaning: one line for people.
        calls: where it is allowed.
        served: the values that this version serves; None for all that ``kind`` allows. The others are refused by name,
            because a parameter that is silently ignored gives a wrong answer.
    """

    name: str
    kind: Kind
    default: Any
    meaning: str
    calls: Call = Call.ANY
    served: tuple[object, ...] | None = None


TABLE: tuple[Parameter, ...] = (
    Parameter("max_tokens", Integer(1, INT32_MAX), None, "the most tokens generated"),
    Parameter("min_tokens", Integer(0, INT32_MAX), 0, "tokens generated before a stop token may be chosen"),
    Parameter("temperature", Number(0), 1.0, "divides the logits; 0, and anything below 1e-5, is greedy"),
    Parameter("top_k", Integer(0, INT32_MAX), 0, "keeps the k most likely tokens; 0 keeps all"),
    Parameter("top_p", Number(0, 1, above_low=True), 1.0, "keeps the most likely tokens of this probability together"),
    Parameter("min_p", Number(0, 1), 0.0, "drops tokens less likely than this share of the most likely one"),
    Parameter("seed", Integer(-INT64_MAX - 1, INT64_MAX), None, "makes sampling repeatable"),
    Parameter("stop", Texts(max_count=16, max_bytes=1024), (), "strings that end the text and are no part of it"),
    Parameter("stop_token_ids", TokenIds(max_count=128), (), "tokens that end the text"),
    Parameter("ignore_eos", Boolean(), False, "goes on past the end-of-sequence token"),
    Parameter("priority", Integer(-INT32_MAX - 1, INT32_MAX), 0, "ranks requests; smaller is more important"),
    Parameter("cache_salt", Text(max_bytes=128), "", "keeps the prefix from requests of another salt"),
    Parameter("skip_special_tokens", Boolean(), True, "leaves special tokens out of the text"),
    Parameter(
        "add_special_tokens",
        Boolean(),
        None,
        "puts the tokenizer's own tokens around the text; absent: around a prompt, not around a conversation",
    ),
    Parameter("include_stop_str_in_output", Boolean(), False, "keeps what stopped the text as its end"),
    Parameter("echo", Boolean(), False, "sends the prompt's text first", Call.GENERATE),
    Parameter("request_id", Text(max_bytes=128), "", "names the request in logs"),
    Parameter("typical_p", Number(0, 1, above_low=True), 1.0, "keeps locally typical tokens"),
    Parameter("repetition_penalty", Number(0, above_low=True), 1.0, "weakens tokens already seen"),
    Parameter("presence_penalty", Number(-2, 2), 0.0, "weakens tokens already generated"),
    Parameter("frequency_penalty", Number(-2, 2), 0.0, "weakens tokens by how often they came"),
    Parameter("logit_bias", Biases(100), {}, "added to the logits of token ids"),
    Parameter("bad_words", Texts(max_count=64, max_bytes=128), (), "texts that are never completed"),
    Parameter("logprobs", Integer(0, 20), None, "log-probabilities of this many most likely tokens"),
    Parameter("prompt_logprobs", Integer(0, 20), None, "the same for the prompt", Call.GENERATE),
    Parameter("n", Integer(1, 128), 1, "number of answers"),
    Parameter("best_of", Integer(1, 128), None, "answers generated, of which the n best are kept"),
    Parameter("beam_width", Integer(1, 128), None, "beam search of this width"),
    Parameter("length_penalty", Number(), 1.0, "exponent of the length in a beam's score"),
    Parameter("early_stopping", Boolean(), False, "ends a beam search as soon as beam_width texts are finished"),
    Parameter("response_format", Language(max_bytes=512 * 1024), None, "what the output must match"),
    Parameter("tools", Functions(), (), "functions the model may call", Call.CHAT),
    Parameter("tool_choice", Choice(), AUTO, "whether it calls any", Call.CHAT),
    Parameter("parallel_tool_calls", Boolean(), True, "allows several calls in one answer", Call.CHAT),
    Parameter(VARIABLES, Variables(max_count=64, taken=GIVEN), {}, "more names for the chat template", Call.CHAT),
    Parameter("reasoning_effort", Word(effort.EFFORTS), None, "how much the model is to reason", Call.CHAT),
    Parameter("separate_reasoning", Boolean(), True, "tells reasoning apart from the answer", Call.CHAT),
    Parameter("include_reasoning", Boolean(), True, "sends reasoning that is told apart", Call.CHAT),
    Parameter("adapter", Text(max_bytes=256), "", "fine-tuned weights", served=("",)),
)

BY_NAME: Mapping[str, Parameter] = {parameter.name: parameter for parameter in TABLE}


# The first of each pair may not be greater than the second.
AT_MOST = (("min_tokens", "max_tokens"), ("n", "best_of"), ("n", "beam_width"))

# What means nothing without beam_width. Their defaults may be given, as some clients send every field.
OF_BEAMS = ("length_penalty", "early_stopping")


@dataclass(frozen=True, slots=True)
class Parameters:
    """The validated values a generation runs on; names and units as in the table."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    cache_salt: str = field(default="", repr=False)
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None
    include_stop_str_in_output: bool = False
    echo: bool = False
    request_id: str = ""
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = field(default=(), repr=False)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool = False
    response_format: Grammar | None = field(default=None, repr=False)
    tools: tuple[Function, ...] = field(default=(), repr=False)
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    reasoning_effort: str | None = None
    separate_reasoning: bool = True
    include_reasoning: bool = True

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """More names for the chat template: the caller's own go before those of an effort."""
        return {**effort.variables_of(self.reasoning_effort), **self.chat_template_kwargs}


_USED = frozenset(Parameters.__dataclass_fields__)


def validate(call: Call, values: Mapping[str, Any], vocab_size: int) -> Parameters:
    """The values a generation runs on.

    Args:
        call: the call that the values came with.
        values: what the caller gave, by parameter name.
        vocab_size: the model's; token ids are below it.

    Raises:
        InvalidRequest: naming the wrong values (the first 8), with what was found and what is allowed.
    """
    problems: dict[str, str] = {}
    for name, value in values.items():
        problems.update(_problems(call, name, value, vocab_size))
    for less, more in AT_MOST:
        smaller, greater = values.get(less, BY_NAME[less].default), values.get(more)
        if greater is not None and not problems.keys() & {less, more} and smaller > greater:
            problems[less] = f"{smaller} found, allowed is at most {more}, which is {greater}"
    if {"best_of", "beam_width"} <= values.keys() and not problems.keys() & {"best_of", "beam_width"}:
        problems["best_of"] = "not beside beam_width: a beam search keeps the n best of its width"
    for name in OF_BEAMS if values.get("beam_width") is None else ():
        if name not in problems and values.get(name, BY_NAME[name].default) != BY_NAME[name].default:
            problems[name] = "without beam_width there is no beam search that it could change"
    if not problems:
        problems.update(_tool_problems(values))
        problems.update(_beside_a_grammar(values))
    if problems:
        raise InvalidRequest(dict(itertools.islice(problems.items(), MAX_PROBLEMS)))
    chosen = {row.name: values.get(row.name, row.default) for row in TABLE if row.name in _USED}
    return Parameters(**chosen)


def _tool_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A choice that the functions do not allow."""
    choice = values.get(TOOL_CHOICE, AUTO)
    names = {function.name for function in values.get(TOOLS, ())}
    if choice.freedom is Freedom.CALLS and not names:
        yield TOOL_CHOICE, f"a call found to be required, and no {TOOLS}"
    elif choice.only is not None and not choice.only <= names:
        yield TOOL_CHOICE, f"a function found that is none of the {TOOLS}"


def _beside_a_grammar(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a text that must match a grammar cannot have."""
    freedom = values.get(TOOL_CHOICE, AUTO).freedom
    strict = freedom is Freedom.TEXT_OR_CALLS and any(function.strict for function in values.get(TOOLS, ()))
    if "response_format" not in values and freedom is not Freedom.CALLS and not strict:
        return
    if values.get("ignore_eos"):
        yield "ignore_eos", "true found, a text that matches a constraint ends where it is complete"
    if values.get("beam_width") is not None:
        yield "beam_width", "not beside a constraint of the output"


def _problems(call: Call, name: str, value: object, vocab_size: int) -> Iterator[tuple[str, str]]:
    row = BY_NAME.get(name)
    if row is None or not row.calls & call:
        yield name, "no parameter of this call"
        return
    found = list(row.kind.problems(value, vocab_size))
    for problem in found:
        yield f"{name}{problem.at}", f"{problem.found} found, allowed is {problem.allowed or row.kind.allowed}"
    if not found and row.served is not None and value not in row.served:
        served = " or ".join("the empty text" if value == "" else str(value) for value in row.served)
        yield name, "not supported by this version" + (f", which takes only {served}" if served else "")
