"""``octavo inspect``: a KV manager's pools, tables and blocks, straight from the manager."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cli.failures import CliError
from cli.options import (
    UINT32_MAX,
    UINT64_MAX,
    ManagerOption,
    PoolOption,
    TlsCaOption,
    TlsCertificateOption,
    TlsKeyOption,
    TlsOption,
)

if TYPE_CHECKING:
    from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc


def inspect(
    pool: PoolOption = "",
    seq: Annotated[int | None, typer.Option(min=0, max=UINT64_MAX, help="show this sequence's block table")] = None,
    block: Annotated[
        int | None, typer.Option(min=0, max=UINT32_MAX, help="show this block: its digest and who shares it")
    ] = None,
    blocks: Annotated[bool, typer.Option("--blocks", help="draw every block of the pool")] = False,
    check: Annotated[
        bool, typer.Option(help="check every invariant; steps wait for it, about 5 s per million blocks")
    ] = True,
    live: Annotated[bool, typer.Option("--live", help="draw the pool as it changes; q ends")] = False,
    web: Annotated[bool, typer.Option("--web", help="serve the inspector page here; Ctrl-C ends")] = False,
    web_listen: Annotated[
        str, typer.Option(help="address of the page, host:port; port 0 picks one")
    ] = "127.0.0.1:8080",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
    address: ManagerOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Show a pool: blocks by state, live sequences, who gave way lately, and whether everything adds up.

    One sequence's table or one block on request.

    Exit status 1 when an invariant is broken.
    """
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import Message

    from cli import pool_views
    from cli.calls import channel_to
    from cli.options import manager_address, tls_files
    from cli.pools import only_pool
    from cli.printing import show
    from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc

    if (live or web) and (as_json or blocks or seq is not None or block is not None or (live and web)):
        flag = "--live" if live else "--web"
        raise CliError(f"{flag} shows the whole pool: it goes with neither --seq, --block, --blocks nor --json")
    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    if web:
        try:
            from cli.web import serve_web
        except ModuleNotFoundError as error:
            raise CliError(
                f"the page is served by the gateway's libraries ({error}): pip install 'octavo[gateway]'"
            ) from error

        serve_web(manager_address(address), web_listen, files)
        return
    with channel_to(address := manager_address(address), "KV manager", tls=files) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        name = pool or only_pool(stub.ListPools(inspect_pb2.ListPoolsRequest()), address)
        if live:
            _live(stub, name, address)
            return
        answers: dict[str, Message] = {"pool": stub.InspectPool(inspect_pb2.InspectPoolRequest(pool=name))}
        if seq is not None:
            answers["sequence"] = stub.InspectSequence(inspect_pb2.InspectSequenceRequest(pool=name, seq=seq))
        if block is not None:
            answers["block"] = _one_block(stub, name, block)
        if blocks:
            answers["blocks"] = pool_views.all_blocks(stub, name)
        if check:
            verdict = stub.CheckIntegrity(inspect_pb2.CheckIntegrityRequest(pool=name))
            answers["integrity"] = verdict
    if as_json:
        rows = {
            key: MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            for key, answer in answers.items()
        }
        print(json.dumps(rows))
    else:
        for key, answer in answers.items():
            show(pool_views.VIEWS[key](answer))
    if check and verdict.violations:
        raise SystemExit(1)


def _live(stub: "kv_manager_pb2_grpc.KvManagerServiceStub", pool: str, address: str) -> None:
    from cli.live.follower import Follower
    from cli.live.screen import watch_live
    from octavo.kv.v1 import inspect_pb2

    stub.InspectPool(inspect_pb2.InspectPoolRequest(pool=pool))  # a name that is wrong is told before anything is drawn
    watch_live(Follower(stub, pool, address))


def _one_block(
    stub: "kv_manager_pb2_grpc.KvManagerServiceStub", pool: str, block: int
) -> "inspect_pb2.InspectBlocksResponse":
    from octavo.kv.v1 import inspect_pb2

    found = stub.InspectBlocks(inspect_pb2.InspectBlocksRequest(pool=pool, first_block=block, count=1))
    if not found.blocks:
        raise CliError(f"pool {pool!r} has no block {block}")
    return found
