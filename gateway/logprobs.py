"""The worker's log-probabilities with the tokens' texts."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.text.tokenizer import Tokenizer
from octavo.worker.v1 import sampling_pb2


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its natural log-probability in the model's own distribution.

    Attributes:
        text: the token decoded alone, with U+FFFD for the part of a character.
        bytes: over the chosen tokens of an answer they concatenate to its UTF-8; so they are empty for a chosen token
            that is no part of it. A stop string may end the text inside the last token's.
    """

    token_id: int
    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token of a position, and the most likely ones, best first."""

    token: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class LogprobReader:
    """Reads log-probabilities for one answer.

    Attributes:
        hidden: tokens that its text leaves out.
    """

    tokenizer: Tokenizer
    hidden: frozenset[int]

    def read(
        self, entries: Iterable[sampling_pb2.TokenLogprobs], stop_token: int | None = None
    ) -> tuple[TokenLogprobs, ...]:
        """Entries of consecutive tokens; ``stop_token`` is no part of the text either, as it is the last of them."""
        return tuple(self._entry(entry, stop_token) for entry in entries)

    def _entry(self, entry: sampling_pb2.TokenLogprobs, stop_token: int | None) -> TokenLogprobs:
        unseen = entry.token_id in self.hidden or entry.token_id == stop_token
        top = tuple(self._token(one.token_id, one.logprob, unseen=False) for one in entry.top)
        return TokenLogprobs(self._token(entry.token_id, entry.logprob, unseen=unseen), top)

    def _token(self, token_id: int, logprob: float, *, unseen: bool) -> TokenLogprob:
        raw = self.tokenizer.token_bytes(token_id)
        return TokenLogprob(token_id, raw.decode(errors="replace"), b"" if unseen else raw, logprob)
