"""What a request with tools needs: a parser per answer, and the grammar that makes the model call where it must."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.errors import InvalidRequest
from gateway.grammars import Grammar
from gateway.models import ServedModel
from gateway.parameters import Parameters
from gateway.tools.families import Family, ParserName, family_of
from gateway.tools.functions import TOOLS, Freedom, Function
from gateway.tools.reader import CallReader
from gateway.tools.structure import ANY_ARGUMENTS, Spelling, nested_rule

# A small model that may always add another call never ends.
MAX_CALLS = 16


@dataclass(frozen=True, slots=True)
class Calling:
    """How one request's answers are read.

    Attributes:
        family: the syntax.
        names: of the functions that may be called.
        most: calls in an answer; None for any number.
        grammar: what an answer must match; None where it is free.
        shown: special tokens that the parser has to see.
    """

    family: Family
    names: frozenset[str]
    most: int | None
    grammar: Grammar | None
    shown: frozenset[int]

    def reader(self) -> CallReader:
        """For one answer."""
        return CallReader(self.family.parser(self.names), self.family.call_id, self.most)


def calling_of(model: ServedModel, parameters: Parameters, setting: ParserName) -> Calling | None:
    """How answers to a request are read; None where they are text.

    Raises:
        InvalidRequest: the model's calls are in no syntax known here, or cannot be made to match.
    """
    choice = parameters.tool_choice
    if not parameters.tools or choice.freedom is Freedom.TEXT:
        return None
    family = family_of(setting, model.template.tool_source)
    if family is None:
        raise InvalidRequest({TOOLS: "this model's chat template shows no syntax of calls that is read here"})
    functions = [one for one in parameters.tools if choice.only is None or one.name in choice.only]
    spelling = Spelling.of(model.tokenizer, family.marks)
    most = 1 if choice.once or not parameters.parallel_tool_calls else None
    return Calling(
        family,
        frozenset(function.name for function in functions),
        most,
        _grammar(family, functions, parameters, spelling),
        frozenset(spelling.special_ids.values()),
    )


def _grammar(
    family: Family, functions: Sequence[Function], parameters: Parameters, spelling: Spelling
) -> Grammar | None:
    answer, choice = parameters.response_format, parameters.tool_choice
    most = 1 if choice.once or not parameters.parallel_tool_calls else MAX_CALLS
    if choice.freedom is Freedom.CALLS:
        return _lark(TOOLS, "start: calls", *family.rules(functions, most, spelling))
    if answer is None and not any(function.strict for function in functions):
        return None
    if family.open_calls:
        # What the others take is the model's to read, as it is where no function is strict.
        functions = [one if one.strict else replace(one, parameters=ANY_ARGUMENTS) for one in functions]
    if answer is not None:
        start = "start: calls | answer"
        return _lark(answer.parameter, start, nested_rule("answer", answer), *family.rules(functions, most, spelling))
    if family.led is None:
        start = f'start: calls | PLAIN | ""\nPLAIN: /{family.plain}/'
        return _lark(TOOLS, start, *family.rules(functions, most, spelling))
    spelling = replace(spelling, led=family.led)
    return _lark(TOOLS, "start: calls? plain", *spelling.lead_rules(), *family.rules(functions, most, spelling))


def _lark(parameter: str, *rules: str) -> Grammar:
    return Grammar("lark", "\n".join(rules), parameter)
