"""A conversation: its messages, and one streamed answer per turn."""

from collections.abc import Callable

from cli.calls import answers_of
from cli.generate import usage_line
from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc


class Conversation:
    """Keeps what was said. A turn that fails, or is cancelled before it said anything, leaves no trace.

    Args:
        stub: the gateway.
        options: for every answer.
        model: a served model's name, or empty.
        system: the system message, or empty for the model's own.
        write: called with each piece of an answer.
        write_reasoning: called with each piece of what the model thinks before it.
    """

    def __init__(
        self,
        stub: "gateway_pb2_grpc.GatewayServiceStub",
        options: gateway_pb2.GenerateOptions,
        model: str,
        system: str,
        write: Callable[[str], None],
        write_reasoning: Callable[[str], None],
    ) -> None:
        self._stub = stub
        self._options = options
        self._model = model
        self._write = write
        self._write_reasoning = write_reasoning
        self._opening: list[gateway_pb2.ChatMessage] = []
        self.messages: list[gateway_pb2.ChatMessage] = []
        self.set_system(system)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._opening)

    def set_system(self, text: str) -> None:
        """Start anew under another system message; empty for the model's own.

        Raises:
            UnicodeEncodeError: the text is no UTF-8; nothing has changed. So does ``turn``.
        """
        self._opening = [gateway_pb2.ChatMessage(role="system", content=text)] if text else []
        self.reset()

    def turn(self, text: str) -> str:
        """Say something and stream the answer; returns a line about it for people. Ctrl-C stops the answer.

        Raises:
            grpc.RpcError: the call failed.
        """
        asked = gateway_pb2.ChatMessage(role="user", content=text)
        request = gateway_pb2.ChatRequest(model=self._model, messages=[*self.messages, asked], options=self._options)
        answer, thinks = "", False
        note = "[stopped]"
        call = self._stub.Chat(request)
        try:
            for response in answers_of(call):
                if response.reasoning:
                    self._write_reasoning(response.reasoning)
                    thinks = True
                if response.content and thinks:
                    self._write_reasoning("\n")
                    thinks = False
                answer += response.content
                self._write(response.content)
                if response.finish_reason:
                    note = usage_line(response.usage, response.finish_reason)
        except KeyboardInterrupt:
            call.cancel()
        self._write("\n")
        if answer:
            self.messages += [asked, gateway_pb2.ChatMessage(role="assistant", content=answer)]
        return note
