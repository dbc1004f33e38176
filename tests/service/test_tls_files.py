"""Wrong TLS files are named before gRPC sees them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from authority import Authority

from service.channels import TlsFiles, open_channel

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), ["one", "other"])


def refused(files: TlsFiles) -> str:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the caller looks at its words
        files.read()
    return str(caught.value)


def test_files_that_belong_together_are_read(authority: Authority) -> None:
    ca, key, certificate = authority.identity("one").read()
    assert (ca, key, certificate) == tuple(
        path.read_bytes() for path in (authority.ca, authority.files["one"][1], authority.files["one"][0])
    )
    assert TlsFiles().read() == (None, None, None)
    with open_channel("127.0.0.1:1", TlsFiles(authority.ca)):
        pass


def test_the_wrong_one_is_named(authority: Authority, tmp_path: Path) -> None:
    (certificate, key), (_, other_key) = authority.files["one"], authority.files["other"]
    rubbish, missing, locked = tmp_path / "rubbish.pem", tmp_path / "missing.pem", tmp_path / "locked.key"
    rubbish.write_text("no PEM\n")
    # A password would be asked for on the terminal of whoever starts the service.
    subprocess.run(
        ["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:four", "-out", locked],
        check=True,
        capture_output=True,
    )
    assert refused(TlsFiles(rubbish)).startswith(f"{rubbish} is no certificate in PEM")
    assert refused(TlsFiles(key)).startswith(f"{key} is no certificate in PEM")
    pairs = [
        (certificate, other_key),
        (rubbish, key),
        (certificate, rubbish),
        (certificate, locked),
        (key, certificate),
    ]
    for one, two in pairs:
        assert refused(TlsFiles(None, one, two)).startswith(f"{one} and {two} are no certificate and its key in PEM")
    assert refused(TlsFiles(None, certificate, other_key)).endswith("key values mismatch")
    for files in (TlsFiles(missing), TlsFiles(None, missing, key), TlsFiles(None, certificate, missing)):
        assert str(missing) in refused(files)


def test_a_weak_key_is_for_its_peers_to_refuse(tmp_path: Path) -> None:
    certificate, key = tmp_path / "weak.pem", tmp_path / "weak.key"
    made = ["-newkey", "rsa:1024", "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=weak", "-days", "1"]
    subprocess.run(["openssl", "req", "-x509", *made], check=True, capture_output=True)
    TlsFiles(certificate, certificate, key).read()
