"""``octavo abort``: end a request at its worker."""

import json
from typing import Annotated

import typer

from cli.failures import CliError
from cli.options import JsonOption, TlsCaOption, TlsCertificateOption, TlsKeyOption, TlsOption, WorkerOption


def abort(
    request_id: Annotated[str, typer.Argument(help="as the logs of gateway and worker name it")],
    as_json: JsonOption = False,
    address: WorkerOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """End a request at its worker.

    Its client hears that it was ended from outside, and no other worker goes on with it.

    Exit status 1 when no such request runs or waits there.
    """
    from cli.calls import channel_to
    from cli.options import tls_files, worker_address
    from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    with channel_to(address := worker_address(address), "model worker", tls=files) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        found = stub.Abort(worker_pb2.AbortRequest(request_id=request_id)).found
    if as_json:
        print(json.dumps({"request_id": request_id, "found": found}))
    elif found:
        print("ended")
    if not found:
        raise CliError(f"no request {request_id!r} runs or waits at the worker at {address}")
