"""Validated sampling parameters of one sample."""

from dataclasses import dataclass

from llguidance import LLMatcher

# Dividing by less turns float32 logits into infinities; the limit distribution is the argmax anyway.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Whatever has its default costs nothing.

    Attributes:
        temperature: divides the logits; below 1e-5 the most likely token is taken.
        top_k: keeps the k most likely tokens, and those as likely as the k-th; 0 keeps all.
        top_p: keeps the smallest set of most likely tokens with at least this probability, in (0, 1].
        min_p: drops tokens less likely than ``min_p`` times the most likely one, in [0, 1].
        seed: keys the draws together with the sample's index and the position, 0 to 2**64 - 1.
        index: the sample's index within its request.
        typical_p: keeps the tokens whose surprise is nearest to the entropy, with at least this probability, in (0, 1].
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output, above 0.
        presence_penalty: subtracted once from the logits of generated tokens.
        frequency_penalty: subtracted per occurrence from the logits of generated tokens.
        logit_bias: (token id, what is added to its logit), no id twice.
        bad_words: token sequences that are never completed, none empty.
        grammar: what the generated text must match, before its first token.
        top_logprobs: log-probabilities are wanted of the chosen and of this many most likely tokens; None for none.
        prompt_logprobs: the same for the prompt.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    index: int = 0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: LLMatcher | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def filtered(self) -> bool:
        """Some tokens may be dropped before the draw."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0 or self.typical_p < 1.0


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When a sample ends, apart from the token limit.

    Attributes:
        token_ids: tokens that end the sample, end-of-sequence tokens included unless they are ignored.
        min_tokens: generated before any of them may be chosen.
    """

    token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
