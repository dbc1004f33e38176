"""Settings of the process: flag > ``OCTAVO_KV_*`` > ``[kv_manager]`` of ``octavo.toml`` > default."""

from dataclasses import dataclass
from pathlib import Path

from service.channels import TlsFiles
from service.settings import check_address, setting

PROGRAM = "kv_manager"
PREFIX = "OCTAVO_KV_"


@dataclass(frozen=True, slots=True)
class Settings:
    """See the help lines."""

    listen: str = setting("127.0.0.1:50052", "address to serve gRPC on, host:port; port 0 picks one")
    metrics: str = setting("127.0.0.1:9102", "address to serve Prometheus metrics on; empty turns them off")
    lease_seconds: float = setting(10.0, "how long a pool outlives its worker's broken stream")
    # Short: calls take milliseconds, and a worker whose stream ends goes on with another manager.
    grace_seconds: float = setting(1.0, "how long running calls may go on after SIGTERM")
    max_pool_blocks: int = setting(1 << 24, "the largest pool accepted, in blocks of 28 bytes each")
    record: Path | None = setting(None, "file to record every request and answer to; FILE.1, ... if it is taken")
    watch_token_ids: bool = setting(False, "tell watchers who ask for them the token ids of stored blocks: users' text")
    log_level: str = setting("info", "debug, info, warning or error")
    tls_certificate: Path | None = setting(None, "PEM file: serve TLS with this certificate")
    tls_key: Path | None = setting(None, "PEM file: the certificate's key")
    tls_ca: Path | None = setting(None, "PEM file: ask clients for certificates signed by this authority")

    def __post_init__(self) -> None:
        if not self.listen.startswith("unix:"):
            _check_address("listen", self.listen)
        if self.metrics:
            _check_address("metrics", self.metrics)
        if not 0.1 <= self.lease_seconds <= 86_400:
            raise ValueError(f"lease_seconds is {self.lease_seconds:g}, must be 0.1 to 86400")
        if not 0 <= self.grace_seconds <= 86_400:
            raise ValueError(f"grace_seconds is {self.grace_seconds:g}, must be 0 to 86400")
        if not 1 <= self.max_pool_blocks < 1 << 31:
            raise ValueError(f"max_pool_blocks is {self.max_pool_blocks}, must be 1 to {(1 << 31) - 1}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ValueError(f"log_level is {self.log_level!r}, must be debug, info, warning or error")

    def tls(self) -> TlsFiles | None:
        """The TLS files, None for plain text."""
        if self.tls_certificate is None and self.tls_key is None and self.tls_ca is None:
            return None
        return TlsFiles(ca=self.tls_ca, certificate=self.tls_certificate, key=self.tls_key)


def _check_address(name: str, address: str) -> None:
    try:
        check_address(address)
    except ValueError as error:
        raise ValueError(f"{name} is {address!r}, {error}") from None
