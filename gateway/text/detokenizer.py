"""Turns a stream of token ids into a stream of text.

The one property: the concatenation of all pieces is the full decode of all ids, for every tokenizer, and no piece ends
inside a character. Decoding a token alone, or a window of the last few, cannot give it: tokenizers put spaces in by
position, spread characters over tokens, and some change text they have shown already when more follows. So nothing is
decoded twice here: each stage of the tokenizer's decoder runs as a machine over the stream (`decode_stages`, which also
says why each is exact), at a cost per token that does not depend on how many went before. What is held back:

| decoder | held at most |
|---|---|
| byte-level | the up to three bytes of an unfinished character |
| byte fallback | the running series of byte tokens: one bad byte turns *all* of them into U+FFFD |
| `</w>` suffixes | one token |
| space clean-up | a space and the two characters behind it |

A decoder that cannot be run piece by piece is decoded once, by `finish`: late, and right.
"""

from collections.abc import Iterable, Sequence

from gateway.text.tokenizer import Tokenizer

# A character has at most four bytes, so at most three tokens can precede the last within one.
_CONTEXT_TOKENS = 4


class Detokenizer:
    """The text of one stream of token ids.

    With a `context`, the ids that precede the stream (the prompt), the text is what the stream adds to it: a first
    token that begins a word keeps its space, and a character that the context left unfinished is shown whole. Without
    one the text is that of `Tokenizer.decode` on the streamed ids. Special tokens that are `shown` are never skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
        context: Sequence[int] = (),
    ):
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown if skip_special_tokens else frozenset()
        self._late: list[int] = []
        if not tokenizer.plan.streamable:
            self._machine = None
            return
        self._machine = tokenizer.plan.machine()
        border = self._visible_tail(context)
        if border:
            for token in border:
                self._machine.push(token)
            self._machine.settle()

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids; returns the text that no later id can change."""
        return "".join(map(self.push_one, ids))

    def push_one(self, id_: int) -> str:
        """Take the next id; as `push`."""
        if self._machine is None:
            self._late.append(id_)
            return ""
        token = self._visible(id_)
        return "" if token is None else self._machine.push(token)

    def finish(self) -> str:
        """Say that no id follows; returns the rest, with U+FFFD for a character that was never finished."""
        if self._machine is None:
            late, self._late = self._late, []
            return self._tokenizer.decode([id_ for id_ in late if id_ not in self._skipped])
        return self._machine.finish()

    def _visible(self, id_: int) -> str | None:
        return None if id_ in self._skipped else self._tokenizer.token(id_)

    def _visible_tail(self, context: Sequence[int]) -> list[str]:
        """The last visible tokens of the context, enough to hold a whole unfinished character."""
        tail: list[str] = []
        for id_ in reversed(context):
            token = self._visible(id_)
            if token is not None:
                tail.append(token)
                if len(tail) == _CONTEXT_TOKENS:
                    break
        return tail[::-1]
