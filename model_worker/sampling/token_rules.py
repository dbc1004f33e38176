"""Rules about single tokens: biases, words that must not be completed, no stop before the minimum."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model_worker.sampling.entries import Ids, flat_entries
from model_worker.sampling.processors import SampledRow


def _ids(tokens: Sequence[int]) -> Ids:
    return np.array(tokens, dtype=np.int64)


def _ban(logits: Tensor, rows: Sequence[int], ids: Sequence[Ids]) -> None:
    logits.view(-1)[flat_entries(logits, rows, ids)] = -torch.inf


@dataclass(frozen=True, slots=True)
class Biases:
    """What is added to which logits."""

    ids: Ids
    values: Tensor


class LogitBias:
    """Adds to the logits of given tokens."""

    def begin(self, row: SampledRow) -> Biases | None:
        bias = row.sampling.logit_bias
        if not bias:
            return None
        return Biases(_ids([token for token, _ in bias]), torch.tensor([value for _, value in bias]))

    def accept(self, state: Biases, token: int) -> None:
        """Biases do not change."""

    def apply(self, logits: Tensor, rows: Sequence[int], states: Sequence[Biases]) -> None:
        entries = flat_entries(logits, rows, [one.ids for one in states])
        logits.view(-1)[entries] += torch.cat([one.values for one in states]).to(logits)


@dataclass(slots=True)
class WordTails:
    """The bad words of a sequence by the token before their last one, and how the sequence ends.

    Attributes:
        always: last tokens of words of one token.
        after: (all tokens but the last, the last) of the longer ones, by the last but one.
        longest: the most tokens a word has before its last.
        tail: the sequence's last ``longest`` tokens.
    """

    always: list[int]
    after: dict[int, list[tuple[tuple[int, ...], int]]]
    longest: int
    tail: tuple[int, ...]

    def banned(self) -> list[int]:
        """Tokens that would complete a word now."""
        if not self.tail:
            return self.always
        words = self.after.get(self.tail[-1], ())
        return self.always + [last for before, last in words if self.tail[-len(before) :] == before]


class BadWords:
    """Forbids the last token of a bad word where the tokens before it stand, in the prompt too."""

    def begin(self, row: SampledRow) -> WordTails | None:
        words = row.sampling.bad_words
        if not words:
            return None
        after: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for word in words:
            if len(word) > 1:
                after.setdefault(word[-2], []).append((word[:-1], word[-1]))
        longest = max(len(word) for word in words) - 1
        tail = row.tokens[max(0, row.prompt_length - longest) : row.prompt_length]
        return WordTails([word[0] for word in words if len(word) == 1], after, longest, tuple(tail))

    def accept(self, state: WordTails, token: int) -> None:
        state.tail = (*state.tail, token)[-state.longest :] if state.longest else ()

    def apply(self, logits: Tensor, rows: Sequence[int], states: Sequence[WordTails]) -> None:
        _ban(logits, rows, [_ids(one.banned()) for one in states])


@dataclass(slots=True)
class Patience:
    """How many tokens are to come before a stop token may."""

    stops: Ids
    remaining: int


class MinTokens:
    """Forbids stop tokens until enough was generated."""

    def begin(self, row: SampledRow) -> Patience | None:
        stop = row.stop
        return Patience(_ids(sorted(stop.token_ids)), stop.min_tokens) if stop.token_ids and stop.min_tokens else None

    def accept(self, state: Patience, token: int) -> None:
        state.remaining -= 1

    def apply(self, logits: Tensor, rows: Sequence[int], states: Sequence[Patience]) -> None:
        _ban(logits, rows, [one.stops if one.remaining > 0 else one.stops[:0] for one in states])
