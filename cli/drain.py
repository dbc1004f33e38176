"""``octavo drain``: have a service take nothing new, and see what still runs there come to its end."""

import json
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from cli.amounts import counted
from cli.failures import CliError
from cli.foreign import printable
from cli.options import (
    AddressOption,
    ApiKeyOption,
    JsonOption,
    ManagerOption,
    PoolOption,
    TlsCaOption,
    TlsCertificateOption,
    TlsKeyOption,
    TlsOption,
    WorkerOption,
)
from cli.waiting import looks

WaitOption = Annotated[
    bool, typer.Option("--wait", help="return when nothing runs any more; Ctrl-C ends the wait, not the drain")
]
TimeoutOption = Annotated[
    float | None, typer.Option(min=0, help="with --wait: seconds after which it is given up, with status 1")
]

drain = typer.Typer(
    name="drain",
    no_args_is_help=True,
    help="Stop what is new, let finish what runs.",
    epilog="A drain holds until its process ends, which it does not end: SIGTERM does.",
)


@drain.command()
def worker(
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    address: WorkerOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Drain a model worker.

    Gateways leave it out, and its streams go on to their ends.
    """
    from cli.calls import channel_to
    from cli.options import tls_files, worker_address
    from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    with channel_to(address := worker_address(address), "model worker", tls=files) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        running = _follow(lambda: stub.Drain(worker_pb2.DrainRequest()).live_requests, wait=wait, timeout=timeout)
    _tell(f"worker {address}", running, "request", as_json=as_json, waited=wait)


@drain.command()
def gateway(
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    address: AddressOption = "",
    api_key: ApiKeyOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Drain a gateway.

    With the key of a tenant that is an operator. Its health turns NOT_SERVING, and its streams go on to their ends.
    """
    from cli.calls import gateway_channel
    from cli.options import gateway_address, tls_files
    from octavo.gateway.v1 import operator_pb2, operator_pb2_grpc

    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    with gateway_channel(address := gateway_address(address), files, api_key) as channel:
        stub = operator_pb2_grpc.OperatorServiceStub(channel)
        running = _follow(lambda: stub.Drain(operator_pb2.DrainRequest()).running_calls, wait=wait, timeout=timeout)
    _tell(f"gateway {address}", running, "call", as_json=as_json, waited=wait)


@drain.command()
def pool(
    pool: PoolOption = "",
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    address: ManagerOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Drain a pool at its KV manager.

    Nobody is admitted, and what runs goes on to its end. What its worker has queued waits in vain, so drain the worker
    where it can be drained.
    """
    from cli.calls import channel_to
    from cli.options import manager_address, tls_files
    from cli.pools import only_pool
    from octavo.kv.v1 import inspect_pb2, kv_manager_pb2, kv_manager_pb2_grpc

    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    with channel_to(address := manager_address(address), "KV manager", tls=files) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        name = pool or only_pool(stub.ListPools(inspect_pb2.ListPoolsRequest()), address)
        request = kv_manager_pb2.DrainRequest(pool=name)
        running = _follow(lambda: stub.Drain(request).live_sequences, wait=wait, timeout=timeout)
    _tell(f"pool {name!r}", running, "sequence", as_json=as_json, waited=wait)


def _follow(ask: Callable[[], int], *, wait: bool, timeout: float | None) -> int:
    """What still runs when the drain has been ordered, or when the wait is over."""
    running = -1
    for _ in looks(timeout if wait else 0):
        before, running = running, ask()
        if not running:
            break
        if wait and running != before:
            print(f"{running} still running", file=sys.stderr)
    return running


def _tell(what: str, running: int, noun: str, *, as_json: bool, waited: bool) -> None:
    """Say how far the drain is.

    Raises:
        CliError: somebody waited for its end in vain.
    """
    if as_json:
        print(json.dumps({"draining": what, "running": running}))
    else:
        left = f"{counted(running, noun)} still running" if running else "nothing runs any more, it can be stopped"
        print(printable(f"{what} drains: {left}"))
    if waited and running:
        raise CliError(f"the wait is over with {counted(running, noun)} still running")
