"""``octavo workers`` and ``octavo tenants``: what a gateway says of both, for those who run it."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.foreign import printable
from cli.options import (
    AddressOption,
    ApiKeyOption,
    JsonOption,
    TlsCaOption,
    TlsCertificateOption,
    TlsKeyOption,
    TlsOption,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from octavo.gateway.v1 import operator_pb2


def workers(
    as_json: JsonOption = False,
    address: AddressOption = "",
    api_key: ApiKeyOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """List a gateway's workers.

    Which it uses and why not the others, what each serves, and how much runs there for it.

    Where the gateway has tenants, with the key of an operator. Exit status 1 when it can use no worker.
    """
    from cli.calls import gateway_channel
    from cli.options import gateway_address, tls_files
    from octavo.gateway.v1 import operator_pb2, operator_pb2_grpc

    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    with gateway_channel(gateway_address(address), files, api_key) as channel:
        stub = operator_pb2_grpc.OperatorServiceStub(channel)
        answer = stub.ListWorkers(operator_pb2.ListWorkersRequest())
    _print(answer, workers_lines(answer.workers), as_json=as_json)
    if all(worker.trouble for worker in answer.workers):
        raise SystemExit(1)


def tenants(
    as_json: JsonOption = False,
    address: AddressOption = "",
    api_key: ApiKeyOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """List what tenants take of a gateway.

    Now, and since it started. Where it has tenants, with the key of an operator.
    """
    from cli.calls import gateway_channel
    from cli.options import gateway_address, tls_files
    from octavo.gateway.v1 import operator_pb2, operator_pb2_grpc

    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    with gateway_channel(gateway_address(address), files, api_key) as channel:
        stub = operator_pb2_grpc.OperatorServiceStub(channel)
        answer = stub.ListTenants(operator_pb2.ListTenantsRequest())
    _print(answer, tenants_lines(answer), as_json=as_json)


def workers_lines(workers: "Sequence[operator_pb2.WorkerStatus]") -> list[str]:
    """A line per worker, and below why one cannot be used."""
    rows: list[Sequence[str]] = [("worker", "state", "model", "pool", "samples", "load in tokens")]
    for worker in workers:
        at_once = f" of {worker.max_sequences}" if worker.max_sequences else ""
        samples = f"{worker.samples}{at_once}"
        rows.append((worker.address, _state(worker), worker.model, worker.pool, samples, f"{worker.load_tokens:,}"))
    return [*_aligned(rows), *(f"{one.address} cannot be used: {one.trouble}" for one in workers if one.trouble)]


def _state(worker: "operator_pb2.WorkerStatus") -> str:
    if worker.trouble:
        return "not used"
    return "left out, its calls fail" if worker.left_out else "ready"


def tenants_lines(answer: "operator_pb2.ListTenantsResponse") -> list[str]:
    """A line per tenant, and below the calls of nobody."""
    rows: list[Sequence[str]] = [
        ("tenant", "running", "waiting", "calls", "refused", "prompt", "generated", "tokens left")
    ]
    for one in answer.tenants:
        most = f" of {one.concurrent_requests}" if one.HasField("concurrent_requests") else ""
        left = f"{one.tokens_left:,.0f} of {one.tokens_per_minute:,.0f}" if one.HasField("tokens_per_minute") else "-"
        counts = (one.waiting_requests, one.calls, one.refused_requests, one.prompt_tokens, one.generated_tokens)
        rows.append((one.tenant, f"{one.running_calls}{most}", *(f"{count:,}" for count in counts), left))
    return [*_aligned(rows), f"calls without a key of any tenant: {answer.unauthenticated_calls:,}"]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


def _print(answer: "Message", lines: Sequence[str], *, as_json: bool) -> None:
    from google.protobuf.json_format import MessageToDict

    if as_json:
        fields = MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        print(json.dumps(fields))
    else:
        print(*map(printable, lines), sep="\n")
