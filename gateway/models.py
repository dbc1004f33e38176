"""A served model as the gateway sees it: its limits and its text side."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from octavo.worker.v1 import worker_pb2


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ServedModel:
    """One model. Workers that serve the same model share one object, so identity says "the same model".

    Attributes:
        name: what requests call it.
        fingerprint: identity of the weights; equal ones share prefixes.
        vocab_size: token ids are below it.
        max_context: the most tokens of prompt and output together.
        tokenizer: text to ids and back.
        template: renders conversations, if ``template.exists``.
    """

    name: str
    fingerprint: str
    vocab_size: int
    max_context: int
    tokenizer: Tokenizer = field(repr=False)
    template: ChatTemplate = field(repr=False)


FetchFiles = Callable[[], Awaitable[Mapping[str, bytes]]]
_Key = tuple[str, str, int, int]


class ModelCache:
    """Builds each model once, however many workers serve it, and forgets it when no worker does.

    Args:
        tokenizer: the tokenizer of every model; None asks each model's workers for theirs.
    """

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._models: weakref.WeakValueDictionary[_Key, ServedModel] = weakref.WeakValueDictionary()

    async def get(self, description: worker_pb2.GetModelResponse, fetch: FetchFiles) -> ServedModel:
        """The model that a worker describes; ``fetch`` brings its tokenizer files when they are not here yet.

        Raises:
            TokenizerError: the files are no tokenizer.
        """
        key = (description.model, description.model_fingerprint, description.vocab_size, description.max_context)
        known = self._models.get(key)
        if known is not None:
            return known
        tokenizer = self._tokenizer
        if tokenizer is None:
            tokenizer = await asyncio.to_thread(Tokenizer, await fetch())
        template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
        # Another worker's probe may have built it meanwhile: the first one stays.
        return self._models.setdefault(key, ServedModel(*key, tokenizer, template))
