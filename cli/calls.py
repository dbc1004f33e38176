"""Calls to a service: one channel, and failures as one line for people."""

import contextlib
from collections.abc import Iterator

import grpc
from google.rpc import error_details_pb2

from cli.failures import CliError
from service.channels import open_channel
from service.errors import error_info_of, status_of


@contextlib.contextmanager
def channel_to(address: str, peer: str) -> Iterator[grpc.Channel]:
    """A channel whose failed calls become ``CliError``.

    Args:
        address: where to call, host:port.
        peer: what is expected there, such as "gateway".
    """
    with open_channel(address) as channel:
        try:
            yield channel
        except grpc.RpcError as error:
            raise explain(error, address, peer) from error


def explain(error: grpc.RpcError, address: str, peer: str) -> CliError:
    """The line for a failed call: what the server said of fields, else its reason, else what the transport knows."""
    if not isinstance(error, grpc.Call):
        return CliError(f"call to the {peer} at {address} failed: {error}")
    code = error.code()
    details = error.details() or "no details"
    name = code.name.lower().replace("_", " ")
    violations = _field_violations(error)
    if violations:
        return CliError(f"{name}: " + "; ".join(violations))
    if (info := error_info_of(error)) is not None:
        return CliError(f"{name}: {details} ({info.reason})")
    if code is grpc.StatusCode.UNAVAILABLE:
        return CliError(f"no {peer} answers at {address}: is `octavo serve` running there? ({details})")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CliError(f"what answers at {address} is no Octavo {peer} ({details})")
    return CliError(f"{name} from the {peer} at {address}: {details}")


def _field_violations(error: grpc.RpcError) -> list[str]:
    for detail in getattr(status_of(error), "details", ()):
        bad = error_details_pb2.BadRequest()
        if detail.Unpack(bad):
            return [f"{violation.field}: {violation.description}" for violation in bad.field_violations]
    return []
