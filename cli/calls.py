"""Calls to a service: one channel, and failures as one line for people."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import TypeVar

# As `service` has it, which the order of imports puts behind gRPC here: what fails is said below, in one line.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
from google.rpc import error_details_pb2

from cli.api_key import keyed
from cli.failures import CliError
from cli.foreign import printable
from service.channels import TlsFiles, open_channel
from service.errors import error_info_of, status_of
from service.settings import check_address

Answer = TypeVar("Answer")

# A command does not try again as services do: it is the patience of one attempt to connect, TLS and all, on a machine
# that is busy. A port without a listener is told at once.
CONNECT_MS = 5_000


@contextlib.contextmanager
def gateway_channel(address: str, tls: TlsFiles | None = None, api_key: str = "") -> Iterator[grpc.Channel]:
    """A channel to a gateway, with the service config published beside its stubs: what it says is tried again.

    Args:
        address: where to call, host:port.
        tls: as for ``channel_to``.
        api_key: goes with every call; empty for none.
    """
    config = resources.files("octavo.gateway.v1").joinpath("service_config.json").read_text()
    with channel_to(address, "gateway", ("grpc.service_config", config), tls=tls) as channel:
        yield keyed(channel, api_key) if api_key else channel


@contextlib.contextmanager
def channel_to(
    address: str, peer: str, *options: tuple[str, str], tls: TlsFiles | None = None
) -> Iterator[grpc.Channel]:
    """A channel whose failed calls become ``CliError``.

    Args:
        address: where to call, host:port.
        peer: what is expected there, such as "gateway".
        options: of the channel.
        tls: how to know the peer and be known to it; None for plain text.

    Raises:
        CliError: it is no address, or a file of TLS cannot be read.
    """
    try:
        check_address(address)  # gRPC takes a port modulo 65536, and is somewhere else then
    except ValueError as error:
        raise CliError(f"the {peer}'s address {error}, found {address!r}") from error
    try:
        opened = open_channel(address, tls, [*options, ("grpc.min_reconnect_backoff_ms", CONNECT_MS)])
    except OSError as error:
        raise CliError(f"{error}") from error
    with opened as channel:
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
            return f"no {peer} answers at {address}: {_advice(details)} ({details})"
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return f"what answers at {address} is no Octavo {peer}, or an older one ({details})"
    return _transport(error, address, peer)


_REASON_ADVICE = {
    "MISSING_API_KEY": ": give --api-key, or OCTAVO_API_KEY in the environment",
    "OPERATORS_ONLY": ": give --api-key of a tenant with operator = true",
    "POOL_NOT_FOUND": ": `octavo check` names the pools there are",
}

# What gRPC's core says of a connection that could not be made, and what to do about it.
_ADVICE = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not by the authority that was named, see --tls-ca",
    "WRONG_VERSION_NUMBER": "it speaks no TLS, call without --tls and --tls-ca",
    "Failed to create security handshaker": "a file of TLS is no PEM, or a key is not that of its certificate",
    "Hostname Verification Check": "its certificate is for another name than the one that was called",
    "Socket closed": "it closes the connection, as one does that wants TLS (--tls-ca) or a certificate",
}


def _advice(details: str) -> str:
    return next((advice for mark, advice in _ADVICE.items() if mark in details), "is `octavo serve` running there?")


def _said(error: grpc.RpcError) -> str:
    """What an Octavo service said; empty when none did."""
    if not isinstance(error, grpc.Call):
        return ""
    if violations := _field_violations(error):
        return f"{_name(error)}: " + "; ".join(violations)
    if (info := error_info_of(error)) is not None:
        return f"{_name(error)}: {error.details() or 'no details'} ({info.reason}){_REASON_ADVICE.get(info.reason, '')}"
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
