"""Health check for containers: ``python -m service.probe HOST:PORT`` exits 0 when grpc.health.v1 answers SERVING.

It calls by TLS where the service's own variables say that the service speaks it (``OCTAVO_GATEWAY_TLS_CERTIFICATE``,
``OCTAVO_GATEWAY_TLS_KEY``, and those of the worker and the manager), or where a flag does. What it shows a server that
asks for a certificate is then the service's own.

With ``--ca`` the server is verified like any other. Without, whatever certificate it shows is taken: a probe asks a
process of its own machine, by an address that is seldom in the certificate, and learns nothing but one word.
"""

import argparse
import os
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.channels import TlsFiles, merged, open_channel

TIMEOUT_SECONDS = 3.0
# The one attempt to connect has all the time there is: on a busy machine a handshake may take more than services give
# theirs, which are tried again.
ONE_ATTEMPT = [("grpc.min_reconnect_backoff_ms", round(TIMEOUT_SECONDS * 1000))]
PREFIXES = ("OCTAVO_GATEWAY_", "OCTAVO_WORKER_", "OCTAVO_KV_")


def probe(address: str, tls: TlsFiles | None = None) -> str | None:
    """None when the server at ``address`` serves, otherwise why not.

    Args:
        address: host:port.
        tls: call by TLS; without a ``ca`` any server is believed. None calls in plain text.
    """
    try:
        with _channel(address, tls) as channel:
            request = health_pb2.HealthCheckRequest()
            status = int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_SECONDS).status)
    except grpc.RpcError as error:
        return str(error.details() if isinstance(error, grpc.Call) else error)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        return str(error)
    if status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def own_identity(environ: Mapping[str, str]) -> TlsFiles:
    """The certificate and key of the service whose environment this is; none where it serves plain text."""
    for prefix in PREFIXES:
        certificate, key = (environ.get(f"{prefix}TLS_{name}") for name in ("CERTIFICATE", "KEY"))
        if certificate and key:
            return TlsFiles(None, Path(certificate), Path(key))
    return TlsFiles()


def _channel(address: str, tls: TlsFiles | None) -> grpc.Channel:
    if tls is None or tls.ca is not None:
        return open_channel(address, tls, ONE_ATTEMPT)
    shown, name = _shown_by(address, tls)
    _, key, certificate = tls.read()
    credentials = grpc.ssl_channel_credentials(shown.encode(), key, certificate)
    return grpc.secure_channel(address, credentials, merged([*ONE_ATTEMPT, ("grpc.ssl_target_name_override", name)]))


def _shown_by(address: str, tls: TlsFiles) -> tuple[str, str]:
    """The certificate that a server shows, in PEM, and a name that is in it.

    Raises:
        OSError: nobody answers there, or not by TLS.
    """
    believing = _context(tls)
    believing.check_hostname, believing.verify_mode = False, ssl.CERT_NONE
    with _connected(address, believing) as connection:
        shown = ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"")
    # What is in a certificate is told of one that was verified, if only by itself.
    verifying = _context(tls)
    verifying.check_hostname, verifying.verify_flags = False, verifying.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN
    verifying.load_verify_locations(cadata=shown)
    with _connected(address, verifying) as connection:
        found = dict(connection.getpeercert() or {})
    alternative: Sequence[tuple[str, str]] = found.get("subjectAltName", ())  # type: ignore[assignment]  # by its key
    subject: Sequence[Sequence[tuple[str, str]]] = found.get("subject", ())  # type: ignore[assignment]
    common = [value for part in subject for kind, value in part if kind == "commonName"]
    return shown, next(iter([value for _, value in alternative] + common), "")


def _context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


def _connected(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_SECONDS)
    return context.wrap_socket(connection)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m service.probe", description="exit 0 when a service is SERVING")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--tls", action="store_true", help="call by TLS, whoever the server is")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="call by TLS, verified by this CA")
    parser.add_argument("--cert", type=Path, metavar="FILE", help="certificate to show; by default the service's own")
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key")
    given = parser.parse_args(arguments)
    if (given.cert is None) != (given.key is None):
        parser.error("--cert and --key go together")
    own = own_identity(os.environ)
    tls = TlsFiles(given.ca, given.cert or own.certificate, given.key or own.key)
    wanted = given.tls or tls != TlsFiles()
    if (problem := probe(given.address, tls if wanted else None)) is not None:
        sys.stderr.write(f"{given.address}: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
