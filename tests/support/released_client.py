"""A client of a released proto baseline: its messages are made of the descriptors alone, with no stub of today."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

PATIENCE_SECONDS = 60.0


class Baseline:
    """The messages and calls of a ``FileDescriptorSet``, in a pool of their own."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._pool = DescriptorPool()
        self._files = list(descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file)
        for file in self._files:  # buf writes a file behind those it imports
            self._pool.AddSerializedFile(file.SerializeToString())

    def message(self, name: str, **fields: Any) -> Message:
        """A message by its name below ``octavo``, such as ``gateway.v1.GenerateRequest``."""
        made: Message = GetMessageClass(self._pool.FindMessageTypeByName(f"octavo.{name}"))(**fields)
        return made

    def methods(self) -> Iterator[MethodDescriptor]:
        """Every call of every service."""
        for file in self._files:
            for service in self._pool.FindFileByName(file.name).services_by_name.values():
                yield from service.methods


class ReleasedClient:
    """Calls a server as a client built at a release does."""

    def __init__(self, baseline: Baseline, channel: grpc.Channel) -> None:
        self._channel = channel
        self._methods = {method.full_name: method for method in baseline.methods()}

    def call(self, method: str, request: Message | list[Message]) -> Any:
        """A call by its name below ``octavo``, such as ``gateway.v1.GatewayService.Chat``: its answer, or the stream.

        Args:
            request: the message, or those of a stream.
        """
        sent: Any = iter(request) if isinstance(request, list) else request
        return self._stub(method)(sent, timeout=PATIENCE_SECONDS)

    def _stub(self, method: str) -> Any:
        found = self._methods[f"octavo.{method}"]
        kinds = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, False): self._channel.stream_unary,
            (True, True): self._channel.stream_stream,
        }
        return kinds[found.client_streaming, found.server_streaming](
            f"/{found.containing_service.full_name}/{found.name}",
            request_serializer=GetMessageClass(found.input_type).SerializeToString,
            response_deserializer=GetMessageClass(found.output_type).FromString,
        )
