"""Client channels with the limits and keepalive that our servers expect."""

import atexit
import contextlib
import functools
import gc
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# A ping every 20 s keeps a silent prefill's connection alive through proxies; servers permit one per 10 s.
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
MIN_PING_INTERVAL_MS = 10_000

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted peer is found again within a second instead of gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # What one attempt may take: a busy peer is slow to shake hands, an absent one refuses at once.
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. ``ca`` verifies the peer; ``certificate`` and ``key`` identify this side."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """(ca, key, certificate) as bytes, None where not set.

        Raises:
            OSError: a file cannot be read, or is not what it should be.
        """
        ca, key, certificate = (_read(path) if path else None for path in (self.ca, self.key, self.certificate))
        self._check()
        _free_at_exit()
        return ca, key, certificate

    def _check(self) -> None:
        """Look at the files before gRPC does, which says of a wrong one neither which nor why.

        Raises:
            OSError: naming the file.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers("ALL:@SECLEVEL=0")  # how strong a key has to be is for its peers to say
        if self.ca is not None:
            with _named(f"{self.ca} is no certificate in PEM"):
                context.load_verify_locations(self.ca)
        if self.certificate is not None and self.key is not None:
            with _named(f"{self.certificate} and {self.key} are no certificate and its key in PEM"):
                # A key under a password would be asked for on the terminal.
                context.load_cert_chain(self.certificate, self.key, password=lambda: b"")

    def channel_credentials(self) -> grpc.ChannelCredentials:
        ca, key, certificate = self.read()
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Server credentials; with ``ca`` set, clients must show a certificate it signed (mutual TLS)."""
        ca, key, certificate = self.read()
        if key is None or certificate is None:
            raise ValueError("TLS needs both a certificate and a key")
        return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=ca is not None)


@functools.cache
def _free_at_exit() -> None:
    """Have gRPC's objects freed before the process ends, for which its TLS waits 2 s in vain at the very end.

    Servers and channels stand in cycles with what uses them. The interpreter breaks those so late that gRPC's threads
    do not end any more.
    """

    def free() -> None:
        gc.unfreeze()
        gc.collect()

    atexit.register(free)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OSError(f"{path}, a file of TLS, cannot be read: {(error.strerror or str(error)).lower()}") from error


@contextlib.contextmanager
def _named(problem: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        reason = f": {error.reason.lower().replace('_', ' ')}" if error.reason else ""
        raise OSError(problem + reason) from error


def merged(options: Sequence[tuple[str, int | str]]) -> list[tuple[str, int | str]]:
    """Of an option that is given twice, gRPC takes the first."""
    usual: dict[str, int | str] = dict(CHANNEL_OPTIONS)
    return list((usual | dict(options)).items())


def open_channel(
    address: str, tls: TlsFiles | None = None, options: Sequence[tuple[str, int | str]] = ()
) -> grpc.Channel:
    """A blocking channel with ``options`` beside the usual ones, or in their place. Connects lazily."""
    options = merged(options)
    if tls is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, tls.channel_credentials(), options)


def open_aio_channel(
    address: str,
    tls: TlsFiles | None = None,
    options: Sequence[tuple[str, int | str]] = (),
    *,
    verified_as: str = "",
) -> grpc.aio.Channel:
    """An asyncio channel with ``options`` beside the usual ones, or in their place. Connects lazily.

    Args:
        verified_as: the name that the server's certificate has to be for; empty for the host of ``address``.
    """
    options = merged(options)
    if tls is None:
        return grpc.aio.insecure_channel(address, options)
    if verified_as:
        options.append(("grpc.ssl_target_name_override", verified_as))
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options)
