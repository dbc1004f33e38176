"""Text that belongs to a language: grammars compiled by llguidance, and the masks they put on the logits."""

import contextlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par
from torch import Tensor

from model_worker.sampling.processors import SampledRow

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # a type of the stubs alone

ANY_OBJECT = '{"type": "object"}'
# One line, as most JSON is written: where any white space may stand, a small model writes it for ever. A schema's own
# "x-guidance" goes before this.
JSON_STYLE: "JsonCompileOptions" = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# Units of the compiler's lexer. The first is for the grammar and the first mask together: 200,000 suffice 64 tools of
# which eight have 200 properties each, and the most takes 0.2 s, on the thread that reads the request.
# The second is for a mask in a step, where every stream waits: schemas need 5,000, a regex such as (\w+\s?){1,100}
# 200,000, which take it 10 ms. A vast repetition of one letter, (a{1000}){1000}, would take 0.23 s for as much, for it
# makes a state of the lexer for each letter. Their number is bounded too, which leaves it 0.1 s, once: a text whose
# effort ran out ends. Others make as many only in a counted string, as of "maxLength": one for each of its characters.
FIRST_MASK_EFFORT = 250_000
MASK_EFFORT = 200_000
MAX_STATES = 50_000
LIMITS = LLParserLimits(
    initial_lexer_fuel=FIRST_MASK_EFFORT,
    step_lexer_fuel=MASK_EFFORT,
    max_lexer_states=MAX_STATES,
    verbose_errors=False,
)
TOO_COMPLEX = (
    f"too complex: allowed are {FIRST_MASK_EFFORT} units of the compiler's work at the start of a text and "
    f"{MASK_EFFORT} at a token; ask for less repetition, or for fewer parts"
)
# How the compiler tells of a limit.
LIMITS_TOLD = ("limit for this grammar", "initial_lexer_fuel", "too many states")
# How far the start of a text is tried.
TRIED_TOKENS = 4


class GrammarError(Exception):
    """No grammar can be made of what was asked; the message is for people and of a line."""


@dataclass(slots=True)
class GrammarCompiler:
    """Compiles grammars against one model's vocabulary. Any thread may call it.

    Attributes:
        tokenizer_json: the tokenizer file; None when the model has none.
        vocab_size: the width of its logits.
        eos_token_ids: end a text that the grammar accepts.
    """

    tokenizer_json: str | None
    vocab_size: int
    eos_token_ids: Sequence[int]
    _tokenizer: LLTokenizer | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self) -> None:
        """Read the vocabulary, which takes a second, before anybody waits for it. One that cannot be read is no error
        yet: it is the caller's of a grammar."""
        with contextlib.suppress(GrammarError):
            self._read_tokenizer()

    def compile(self, kind: str, source: str) -> LLMatcher:
        """The matcher at the start of a text, with its first mask computed: the copies that rows take find it made.

        A complex grammar may take a quarter of a second, and the first call a second where ``prepare`` was not called.

        Args:
            kind: json_schema, json_object, regex or lark.
            source: the schema, expression or grammar; ignored for json_object.

        Raises:
            GrammarError: the source is none of its kind or too complex, or the model has no vocabulary to compile for.
        """
        tokenizer = self._read_tokenizer()
        try:
            match kind:
                case "json_schema":
                    grammar = LLMatcher.grammar_from_json_schema(_schema(source), JSON_STYLE)
                case "json_object":
                    grammar = LLMatcher.grammar_from_json_schema(ANY_OBJECT, JSON_STYLE)
                case "regex":
                    grammar = LLMatcher.grammar_from_regex(source)
                case "lark":
                    grammar = LLMatcher.grammar_from_lark(source)
                case _:
                    raise GrammarError(f"{kind or 'nothing'} is no notation of a grammar")
        except ValueError as error:
            raise GrammarError(_line(str(error))) from error
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            said = matcher.get_error()
            raise GrammarError(TOO_COMPLEX if any(limit in said for limit in LIMITS_TOLD) else _line(said))
        if not _can_begin(matcher, tokenizer):
            raise GrammarError(TOO_COMPLEX)
        return matcher

    def _read_tokenizer(self) -> LLTokenizer:
        if self.tokenizer_json is None or not self.eos_token_ids:
            raise GrammarError("this model has no tokenizer.json or no end-of-sequence token")
        with self._lock:
            if self._tokenizer is None:
                try:
                    self._tokenizer = LLTokenizer(
                        self.tokenizer_json, n_vocab=self.vocab_size, eos_token=sorted(self.eos_token_ids)
                    )
                except ValueError as error:
                    raise GrammarError(f"no grammar for this vocabulary: {_line(str(error))}") from error
            return self._tokenizer


def _schema(source: str) -> str:
    """A JSON Schema as it was given. llguidance takes it for a part of its own document, so it has to be whole."""
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError("the schema is no JSON") from error
    if not isinstance(schema, dict | bool):
        raise GrammarError("a schema is a JSON object, true or false")
    return json.dumps(schema)


def _can_begin(matcher: LLMatcher, tokenizer: LLTokenizer) -> bool:
    """Compute the first mask, and whether some text begins within the limits.

    A mask whose effort ran out looks sound: the matcher is in error only after the text that it was sure of and a
    token more, so a copy takes both.
    """
    matcher.compute_bitmask()
    trial = matcher.deep_copy()
    trial.try_consume_tokens(tokenizer.tokenize_bytes(trial.compute_ff_bytes()))
    for _ in range(TRIED_TOKENS):
        if trial.is_stopped():
            break
        mask = np.frombuffer(trial.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        going_on = allowed[~np.isin(allowed, tokenizer.eos_tokens)]
        if not going_on.size:
            break
        trial.consume_token(int(going_on[0]))
    return not trial.is_error()


def _line(message: str) -> str:
    """The first line of a message, with the cause that a regex error tells further down; at most 200 characters."""
    first, *rest = message.strip().splitlines() or [""]
    cause = next((line.removeprefix("error:") for line in rest if line.startswith("error:")), "")[:120]
    return first[: 200 - len(cause)] + cause


class GrammarMask:
    """Forbids tokens after which the text could no longer match; when it matches, the end-of-sequence token is open."""

    def __init__(self) -> None:
        self._executor: LLExecutor | None = None

    def begin(self, row: SampledRow) -> LLMatcher | None:
        grammar = row.sampling.grammar
        return None if grammar is None else grammar.deep_copy()

    def accept(self, state: LLMatcher, token: int) -> None:
        # A token that the grammar does not know, which only a resumed request can bring, ends in a mask without tokens.
        state.consume_token(token)

    def apply(self, logits: Tensor, rows: Sequence[int], states: Sequence[LLMatcher]) -> None:
        if self._executor is None:
            self._executor = LLExecutor()
        vocab = logits.shape[-1]
        mask = allocate_token_bitmask(len(rows), vocab)
        sound = [(matcher, place) for place, matcher in enumerate(states) if not matcher.is_error()]
        mask[[place for place, matcher in enumerate(states) if matcher.is_error()]] = 0
        if sound:
            fill_next_token_bitmask_par(self._executor, sound, mask)
        bits = np.unpackbits(mask.view(np.uint8), axis=-1, count=vocab, bitorder="little")
        forbidden = torch.from_numpy(bits == 0).to(logits.device)
        places = torch.tensor(rows, device=logits.device)
        logits[places] = logits[places].masked_fill_(forbidden, -torch.inf)
