"""Which pools of a KV manager a command means."""

from collections.abc import Sequence

from cli.failures import CliError
from cli.foreign import printable
from octavo.kv.v1 import inspect_pb2


def names_of(listed: inspect_pb2.ListPoolsResponse) -> Sequence[str]:
    """The pools' names in the manager's order."""
    return [summary.header.pool for summary in listed.pools]


def only_pool(listed: inspect_pb2.ListPoolsResponse, address: str) -> str:
    """The only pool there is.

    Raises:
        CliError: there is none, or several.
    """
    match names_of(listed):
        case [name]:
            return str(name)
        case []:
            raise CliError(f"the KV manager at {address} has no pool: no model worker is attached")
        case names:
            raise CliError(f"which pool? --pool {' or '.join(map(printable, names))}")
