"""Wrong TLS files are named before gRPC sees them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from authority import Authority

from service.channels import TlsFiles, open_channel

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), ["one", "other"])


def refused(files: TlsFiles) -> str:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the caller looks at its words
        files.read()
    return str(caught.value)


@pytest.mark.unit
def test_files_that_belong_together_are_read(authority: Authority) -> None:
    ca, key, certificate = authority.identity("one").read()
    assert (ca, key, certificate) == tuple(
        path.read_bytes() for path in (authority.ca, authority.files["one"][1], authority.files["one"][0])
    )
    assert TlsFiles().read() == (None, None, None)
    with open_channel("127.0.0.1:1", TlsFiles(authority.ca)):
        pass


@pytest.mark.unit
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


@pytest.mark.e2e
@pytest.mark.parametrize("flag", ["--gateway-ca", "--manager-ca"])
def test_a_worker_whose_peers_it_could_not_reach_says_so_at_once(flag: str, tmp_path: Path) -> None:
    """It opens the channels to its gateways in a task of their own, which nobody would hear of."""
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no PEM\n")
    # A model that could be loaded, as far as a look at its files can tell.
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    ended = subprocess.run(
        [sys.executable, "-m", "model_worker", "--model", str(tmp_path), flag, str(rubbish)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert [json.loads(line)["message"] for line in ended.stderr.splitlines()] == [
        f"{rubbish} is no certificate in PEM: no certificate or crl found"
    ]


@pytest.mark.unit
def test_a_weak_key_is_for_its_peers_to_refuse(tmp_path: Path) -> None:
    certificate, key = tmp_path / "weak.pem", tmp_path / "weak.key"
    made = ["-newkey", "rsa:1024", "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=weak", "-days", "1"]
    subprocess.run(["openssl", "req", "-x509", *made], check=True, capture_output=True)
    TlsFiles(certificate, certificate, key).read()
