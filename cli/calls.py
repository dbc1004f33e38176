"""Calls to a service: one channel, and failures as one line for people."""

import contextlib
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2

from cli.failures import CliError
from cli.foreign import printable
from service.channels import open_channel
from service.errors import error_info_of, status_of

Answer = TypeVar("Answer")


def gateway_channel(address: str) -> contextlib.AbstractContextManager[grpc.Channel]:
    """A channel to a gateway, with the service config published beside its stubs: what it says is tried again."""
    config = resources.files("octavo.gateway.v1").joinpath("service_config.json").read_text()
    return channel_to(address, "gateway", ("grpc.service_config", config))


@contextlib.contextmanager
def channel_to(address: str, peer: str, *options: tuple[str, str]) -> Iterator[grpc.Channel]:
    """A channel whose failed calls become ``CliError``.

    Args:
        address: where to call, host:port.
        peer: what is expected there, such as "gateway".
        options: of the channel.
    """
    with open_channel(address, options=options) as channel:
        try:
            yield channel
        except grpc.RpcError as error:
            raise explain(error, address, peer) from error


class StreamBroke(grpc.RpcError):
    """A stream ended in an error after its first answer: somebody was there."""

    def __init__(self, cause: grpc.RpcError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def answers_of(call: Iterable[Answer]) -> Iterator[Answer]:
    """A stream's answers.

    Raises:
        StreamBroke: the call failed after its first answer.
        grpc.RpcError: it failed before.
    """
    begun = False
    try:
        for answer in call:
            begun = True
            yield answer
    except grpc.RpcError as error:
        if begun:
            raise StreamBroke(error) from error
        raise


def explain(error: grpc.RpcError, address: str, peer: str) -> CliError:
    """The line for a failed call: what the server said of fields, else its reason, else what the transport knows."""
    return CliError(printable(_explanation(error, address, peer)))


def _explanation(error: grpc.RpcError, address: str, peer: str) -> str:
    if isinstance(error, StreamBroke):
        return f"the answer broke off: {_said(error.cause) or _transport(error.cause, address, peer)}"
    if said := _said(error):
        return said
    if isinstance(error, grpc.Call):
        details = error.details() or "no details"
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return f"no {peer} answers at {address}: is `octavo serve` running there? ({details})"
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return f"what answers at {address} is no Octavo {peer} ({details})"
    return _transport(error, address, peer)


def _said(error: grpc.RpcError) -> str:
    """What an Octavo service said; empty when none did."""
    if not isinstance(error, grpc.Call):
        return ""
    if violations := _field_violations(error):
        return f"{_name(error)}: " + "; ".join(violations)
    if (info := error_info_of(error)) is not None:
        return f"{_name(error)}: {error.details() or 'no details'} ({info.reason})"
    return ""


def _transport(error: grpc.RpcError, address: str, peer: str) -> str:
    if not isinstance(error, grpc.Call):
        return f"call to the {peer} at {address} failed: {error}"
    return f"{_name(error)} from the {peer} at {address}: {error.details() or 'no details'}"


def _name(error: grpc.Call) -> str:
    return str(error.code().name.lower().replace("_", " "))


def _field_violations(error: grpc.RpcError) -> list[str]:
    for detail in getattr(status_of(error), "details", ()):
        bad = error_details_pb2.BadRequest()
        if detail.Unpack(bad):
            return [f"{violation.field}: {violation.description}" for violation in bad.field_violations]
    return []
