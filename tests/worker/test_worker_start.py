"""What the worker checks before it loads anything."""

import importlib.metadata
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from model_worker import settings

pytestmark = pytest.mark.unit


def test_the_foreign_distribution_of_our_packages_name_is_refused(tmp_path: Path) -> None:
    # An installed distribution is its metadata; the refusal comes before the model is looked at.
    info = tmp_path / "kernels-0.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.9.9\n")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("kernels")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r}); "
        "from model_worker import __main__; sys.argv[1:] = ['--model', 'nowhere']; sys.exit(__main__.main())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1
    assert "the distribution 'kernels' 0.9.9 is installed" in ended.stderr


def test_a_setting_is_flag_then_environment_then_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text('[worker]\nmodel = "from-file"\nblock_size = 4\nnum_blocks = 7\npool = "p"\n')
    monkeypatch.setenv("OCTAVO_WORKER_BLOCK_SIZE", "8")
    monkeypatch.setenv("OCTAVO_WORKER_NUM_BLOCKS", "")
    chosen = settings.load(["--config", str(file), "--model", "from-flag"])
    assert (chosen.model, chosen.block_size, chosen.num_blocks, chosen.pool) == (Path("from-flag"), 8, None, "p")


def test_the_pool_is_sized_in_one_of_two_ways_and_the_stronger_source_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text('[worker]\nmodel = "m"\nnum_blocks = 7\n')
    chosen = settings.load(["--config", str(file), "--kv-memory-gib", "0.5"])
    assert (chosen.num_blocks, chosen.kv_memory_gib) == (None, 0.5)
    monkeypatch.setenv("OCTAVO_WORKER_KV_MEMORY_GIB", "2")
    chosen = settings.load(["--config", str(file), "--num-blocks", "9"])
    assert (chosen.num_blocks, chosen.kv_memory_gib) == (9, None)
    monkeypatch.setenv("OCTAVO_WORKER_KV_MEMORY_GIB", "")  # says nothing
    chosen = settings.load(["--config", str(file)])
    assert (chosen.num_blocks, chosen.kv_memory_gib) == (7, None)
    with pytest.raises(SystemExit):
        settings.load(["--model=m", "--num-blocks=9", "--kv-memory-gib=1"])
    assert "--num-blocks and --kv-memory-gib say the same in two ways" in capsys.readouterr().err


def test_replicas_with_one_command_line_have_pools_of_their_own() -> None:
    chosen = settings.load(["--model=m", "--pool=llama-{hostname}"])
    assert chosen.pool == f"llama-{socket.gethostname()}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--model is required, as is or by $OCTAVO_WORKER_MODEL"),
        (["--model=m", "--block-size=0"], "--block-size: Input should be greater than or equal to 1, found '0'"),
        (["--model=m", "--num-blocks=-1"], "--num-blocks"),
        (["--model=m", "--kv-memory-gib=inf"], "--kv-memory-gib: Input should be a finite number, found 'inf'"),
        (["--model=m", "--dtype=int8"], "--dtype"),
        (["--model=m", "--listen=here"], "--listen: must be host:port, port 0 to 65535, found 'here'"),
        (["--model=m", "--listen=127.0.0.1:65536"], "--listen: must be host:port, port 0 to 65535"),
        (["--model=m", "--metrics=127.0.0.1:99999"], "--metrics: must be host:port, port 0 to 65535"),
        (["--model=m", "--manager=a b:1"], "--manager: must be host:port"),
        (["--model=m", "--tls-key=key.pem"], "tls_certificate and tls_key go together"),
        (["--model=m", "--tls-client-ca=ca.pem"], "tls_client_ca needs tls_certificate and tls_key"),
        (["--model=m", "--manager-certificate=c.pem", "--manager-key=k.pem"], "manager_certificate needs manager_ca"),
        (["--model=m", "--gateways=a:1,b"], "--gateways"),
        (["--model=m", "--gateways=dns:///a:1"], "gateways needs gateway_token"),
        (["--model=m", "--gateway-token=short"], "--gateway-token: must be 16 characters or more"),
        (["--model=m", "--config=missing.toml"], "missing.toml does not exist"),
    ],
)
def test_a_wrong_flag_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTAVO_WORKER_MODEL", raising=False)
    with pytest.raises(SystemExit) as ended:
        settings.load(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_no_helper_process_is_ever_forked() -> None:
    """B48: a fork behind gRPC's back hangs. Threads do what helpers would; the services are started, never forked."""
    folder = Path(settings.__file__).parent
    # demo.py fetches the demo model for `octavo models`, where nothing serves.
    sources = {path: path.read_text() for path in folder.rglob("*.py") if path.name != "demo.py"}
    assert len(sources) > 30
    forking = ("multiprocessing", "os.fork", "ProcessPoolExecutor", "subprocess")
    assert [(path.name, word) for path, text in sources.items() for word in forking if word in text] == []
