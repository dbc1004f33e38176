"""Requests that fit any model behind a gateway, and answers put together."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

PATIENCE_SECONDS = 60.0
# What is left of the context to an endless answer's prompt, and the most tokens it asks for.
PROMPT_ROOM, LONGEST = 64, 8_000


@dataclass(slots=True)
class Text:
    """One answer."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[gateway_pb2.TokenLogprobs] = field(default_factory=list)
    calls: list[gateway_pb2.ToolCall] = field(default_factory=list)
    last: Any = None

    @property
    def reason(self) -> str:
        return gateway_pb2.FinishReason.Name(self.last.finish_reason).removeprefix("FINISH_REASON_")

    @property
    def usage(self) -> gateway_pb2.Usage:
        return self.last.usage


class Texts:
    """What came back for one request; every message is held against the stream's rules."""

    def __init__(self, responses: Iterable[gateway_pb2.GenerateResponse | gateway_pb2.ChatResponse]) -> None:
        self.messages: list[Any] = []
        self.answers: dict[int, Text] = defaultdict(Text)
        for response in responses:
            self._take(response)
        assert all(answer.last is not None for answer in self.answers.values()), "every answer ends"

    def _take(self, response: Any) -> None:
        if self.messages:
            assert response.header == self.messages[0].header
        self.messages.append(response)
        answer = self.answers[response.index]
        assert answer.last is None, "finish_reason is set in the last message of an answer"
        if isinstance(response, gateway_pb2.ChatResponse):
            answer.text += response.content
            answer.calls += response.tool_calls
        else:
            answer.text += response.text
        answer.tokens += response.token_ids
        answer.logprobs += response.logprobs
        ends = response.finish_reason != gateway_pb2.FINISH_REASON_UNSPECIFIED
        assert response.HasField("usage") == ends, "usage is set in the last message of an answer"
        if ends:
            answer.last = response

    @property
    def only(self) -> Text:
        """The answer of a request for one."""
        assert list(self.answers) == [0]
        return self.answers[0]


class Client:
    """A client of one model. Requests are greedy and go on past the end of sequence, unless told otherwise."""

    def __init__(
        self,
        stub: gateway_pb2_grpc.GatewayServiceStub,
        model: gateway_pb2.Model,
        salt: str,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.stub = stub
        self.model = model
        self._salt = salt
        self._metadata = metadata

    @property
    def endless(self) -> int:
        """Tokens of an answer that ends only when it is ended, to a prompt of ``PROMPT_ROOM`` at most."""
        return min(self.model.max_context - PROMPT_ROOM, LONGEST)

    def options(self, **options: Any) -> gateway_pb2.GenerateOptions:
        usual = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "cache_salt": self._salt}
        return gateway_pb2.GenerateOptions(**{**usual, **options})

    def request(self, prompt: str | list[int], fields: dict[str, Any], **options: Any) -> gateway_pb2.GenerateRequest:
        request = gateway_pb2.GenerateRequest(options=self.options(**options), model=self.model.id, **fields)
        if isinstance(prompt, str):
            request.prompt = prompt
        else:
            request.token_ids.ids.extend(prompt)
        return request

    def open(self, prompt: str | list[int], fields: dict[str, Any] | None = None, **options: Any) -> Any:
        """The call, to be iterated over and cancelled.

        Args:
            prompt: text or token ids.
            fields: of the request itself.
            options: its options.
        """
        request = self.request(prompt, fields or {}, **options)
        return self.stub.Generate(request, timeout=PATIENCE_SECONDS, metadata=self._metadata)

    def generate(self, prompt: str | list[int], fields: dict[str, Any] | None = None, **options: Any) -> Texts:
        """The whole answer; arguments as for ``open``."""
        return Texts(self.open(prompt, fields, **options))

    def chat(self, *messages: str, fields: dict[str, Any] | None = None, **options: Any) -> Texts:
        """The whole answer to a conversation in which user and assistant take turns."""
        request = gateway_pb2.ChatRequest(
            model=self.model.id, messages=turns(*messages), options=self.options(**options), **(fields or {})
        )
        return Texts(self.stub.Chat(request, timeout=PATIENCE_SECONDS))

    def tokenize(self, text: str) -> list[int]:
        request = gateway_pb2.TokenizeRequest(model=self.model.id, text=text)
        return list(self.stub.Tokenize(request, timeout=PATIENCE_SECONDS).token_ids)

    def detokenize(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        request = gateway_pb2.DetokenizeRequest(
            model=self.model.id, token_ids=ids, skip_special_tokens=skip_special_tokens
        )
        return self.stub.Detokenize(request, timeout=PATIENCE_SECONDS).text


def turns(*messages: str) -> list[gateway_pb2.ChatMessage]:
    return [
        gateway_pb2.ChatMessage(role="assistant" if place % 2 else "user", content=content)
        for place, content in enumerate(messages)
    ]


def clean_piece(text: str) -> str:
    """Three whole characters of a text's middle; one without skips the test."""
    found = re.search(r"[^\ufffd]{3}", text[4:])
    if found is None:
        pytest.skip("the model writes no three characters in a row")
    return found[0]
