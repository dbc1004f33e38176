"""What a request to a model that reasons needs: a reader per answer, and a grammar that holds for its content alone."""

from dataclasses import dataclass

from gateway.grammars import Grammar
from gateway.models import ServedModel
from gateway.parameters import Parameters
from gateway.prompts import Prompt
from gateway.reasoning.marks import Marks, ParserName, marks_of
from gateway.reasoning.reader import ReasoningReader
from gateway.reasoning.splitter import Phase, ReasoningSplitter
from gateway.tools.json_scanner import WHITE_SPACE
from gateway.tools.structure import ANY_TEXT, Spelling, nested_rule


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the answers to one prompt are read.

    Attributes:
        marks: around their reasoning.
        spelling: of the marks.
        start: where the prompt has left off.
        told: whether reasoning is part of the response.
    """

    marks: Marks
    spelling: Spelling
    start: Phase
    told: bool

    @property
    def shown(self) -> frozenset[int]:
        """Special tokens that the reader has to see."""
        return frozenset(self.spelling.special_ids.values())

    def reader(self) -> ReasoningReader:
        """For one answer."""
        return ReasoningReader(ReasoningSplitter(self.marks, self.start), told=self.told)

    def before(self, grammar: Grammar) -> Grammar:
        """A grammar for answers whose content matches ``grammar``, whatever reasoning comes before it."""
        if self.start in (Phase.ENDS, Phase.ANSWERS):
            return grammar
        reasoned = 'reasoning "\\n\\n"?'
        if self.start is Phase.OPENS:
            reasoned = f"({self.spelling.mark(self.marks.open)} {reasoned})?"
        rules = [
            f"start: {reasoned} content",
            self.spelling.up_to("reasoning", self.marks.close),
            ANY_TEXT,
            nested_rule("content", grammar),
        ]
        return Grammar("lark", "\n".join(rules), grammar.parameter)


def thinking_of(model: ServedModel, prompt: Prompt, parameters: Parameters, setting: ParserName) -> Thinking | None:
    """How the answers to a conversation's prompt are read; None where they are content, all of them."""
    marks = marks_of(setting, model.template) if parameters.separate_reasoning else None
    if marks is None:
        return None
    spelling = Spelling.of(model.tokenizer, marks)
    return Thinking(marks, spelling, _start(marks, prompt), parameters.include_reasoning)


def _start(marks: Marks, prompt: Prompt) -> Phase:
    """Where a prompt leaves off. A user may write marks too: only its end counts, and what is gone on with."""
    if prompt.continues:
        splitter = ReasoningSplitter(marks, Phase.OPENS)
        splitter.push(prompt.continues)
        return splitter.phase
    end = (prompt.text or "").rstrip(WHITE_SPACE)
    if end.endswith(marks.close):
        return Phase.ENDS
    return Phase.BEGINS if end.endswith(marks.open) else Phase.OPENS
