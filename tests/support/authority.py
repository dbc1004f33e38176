"""Certificates for tests, made with openssl."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from service.channels import TlsFiles


class Authority:
    """A CA and what it has signed.

    Args:
        folder: where the files go.
        names: one certificate and key for each.
        reached_by: what every certificate is for.

    Attributes:
        ca: its own certificate.
        files: certificate and key by name.
    """

    def __init__(self, folder: Path, names: Sequence[str], reached_by: str = "IP:127.0.0.1,DNS:localhost") -> None:
        self.ca, ca_key = folder / "ca.pem", folder / "ca.key"
        _openssl("req", "-x509", *_new_key(ca_key), "-days", "1", "-subj", "/CN=ca", "-out", self.ca)
        self.files: dict[str, tuple[Path, Path]] = {}
        extension = folder / "names.cnf"
        extension.write_text(f"subjectAltName={reached_by}\n")
        for name in names:
            certificate, key, asked = (folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
            _openssl("req", *_new_key(key), "-subj", f"/CN={name}", "-out", asked)
            signer = ["-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial", "-extfile", extension]
            _openssl("x509", "-req", "-in", asked, *signer, "-days", "1", "-out", certificate)
            self.files[name] = certificate, key

    def serve(self, name: str, ca: str = "tls-client-ca") -> dict[str, object]:
        """Flags of a server that demands certificates."""
        certificate, key = self.files[name]
        return {"tls-certificate": certificate, "tls-key": key, ca: self.ca}

    def reach(self, peer: str, name: str) -> dict[str, object]:
        """Flags of a client of ``peer``."""
        certificate, key = self.files[name]
        return {f"{peer}-ca": self.ca, f"{peer}-certificate": certificate, f"{peer}-key": key}

    def identity(self, name: str) -> TlsFiles:
        return TlsFiles(self.ca, *self.files[name])


def _new_key(path: Path) -> list[object]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path]


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
