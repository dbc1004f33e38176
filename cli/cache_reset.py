"""``octavo reset-cache``: have a KV manager forget the prefixes that its pools have cached."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cli.amounts import counted
from cli.foreign import printable
from cli.options import (
    JsonOption,
    ManagerOption,
    PoolOption,
    TlsCaOption,
    TlsCertificateOption,
    TlsKeyOption,
    TlsOption,
)
from cli.waiting import looks

if TYPE_CHECKING:
    from octavo.kv.v1 import kv_manager_pb2_grpc

IN_USE = "CACHE_IN_USE"


def reset_cache(
    pool: PoolOption = "",
    every: Annotated[bool, typer.Option("--all", help="all pools of the manager")] = False,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait for a moment in which the pool is idle")] = 0.0,
    as_json: JsonOption = False,
    address: ManagerOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Forget the prefixes that a pool has cached.

    The steps of all pools wait for it, about 1 s per million cached blocks.

    Refused while a sequence lives there, running or parked: drain its worker first, or wait for an idle moment.

    Exit status 1 when it is refused.
    """
    from cli.calls import channel_to
    from cli.options import manager_address, tls_files
    from cli.pools import names_of, only_pool
    from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc

    if every and pool:
        raise typer.BadParameter("all pools are more than one: give --pool or --all", param_hint="--all")
    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    cleared: dict[str, int] = {}
    with channel_to(address := manager_address(address), "KV manager", tls=files) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        listed = stub.ListPools(inspect_pb2.ListPoolsRequest())
        for name in names_of(listed) if every else [pool or only_pool(listed, address)]:
            cleared[name] = _reset(stub, name, wait)
            if not as_json:
                print(printable(f"pool {name!r}: {counted(cleared[name], 'block')} forgotten"))
    if as_json:
        print(json.dumps({"cleared_blocks": cleared}))


def _reset(stub: "kv_manager_pb2_grpc.KvManagerServiceStub", pool: str, patience: float) -> int:
    """The number of blocks that lost their digest.

    Raises:
        grpc.RpcError: the pool is in use still when ``patience`` seconds are over, or anything else.
    """
    import grpc

    from octavo.kv.v1 import kv_manager_pb2
    from service.errors import error_info_of

    refusal: grpc.RpcError | None = None
    for _ in looks(patience):
        try:
            return int(stub.ResetPrefixCache(kv_manager_pb2.ResetPrefixCacheRequest(pool=pool)).cleared_blocks)
        except grpc.RpcError as error:
            info = error_info_of(error)
            if info is None or info.reason != IN_USE:
                raise
            refusal = error
    assert refusal is not None  # there is at least one look
    raise refusal
