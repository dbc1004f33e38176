"""Where a setting's value comes from, and what a wrong one says."""

from pathlib import Path

import pytest

from gateway.settings import GatewaySettings, load

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OCTAVO_CONFIG", raising=False)


def test_flag_beats_environment_beats_table_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "octavo.toml").write_text(
        "[gateway]\nworkers = ['t:1', 't:2']\ngrace_seconds = 1\ndefault_max_tokens = 1\nlisten = '127.0.0.1:1'\n"
    )
    monkeypatch.setenv("OCTAVO_GATEWAY_GRACE_SECONDS", "2")
    monkeypatch.setenv("OCTAVO_GATEWAY_DEFAULT_MAX_TOKENS", "2")
    monkeypatch.setenv("OCTAVO_GATEWAY_TOKENIZER", "")
    settings = load(["--default-max-tokens", "3"])
    assert (settings.workers, settings.grace_seconds, settings.default_max_tokens) == (("t:1", "t:2"), 2.0, 3)
    assert (settings.listen, settings.max_prompt_bytes, settings.tokenizer) == ("127.0.0.1:1", 4 * 1024 * 1024, None)


def test_workers_are_split_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_GATEWAY_WORKERS", "a:1, b:2,")
    assert load([]).workers == ("a:1", "b:2")
    assert load(["--workers", "c:3"]).workers == ("c:3",)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grace-seconds", "-1"], "--grace-seconds: Input should be greater than or equal to 0, found '-1'"),
        (["--grace-seconds", "nan"], "--grace-seconds"),
        (["--grace-seconds", "inf"], "--grace-seconds"),
        (["--workers", "nowhere"], "--workers: must be host:port, port 0 to 65535"),
        (["--workers", ","], "workers is empty, and without registration_token none can announce itself"),
        (["--registration-token", "too-short"], "--registration-token"),
        (["--routing", "prefix"], "routing prefix needs managers"),
        (["--log-level", "loud"], "--log-level"),
        (["--tls-key", "key.pem"], "tls_certificate and tls_key go together"),
        (["--config", "missing.toml"], "missing.toml does not exist"),
    ],
)
def test_a_wrong_flag_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_an_unknown_key_of_the_table_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.toml"
    file.write_text("[gateway]\nworker = 'a:1'\n")
    with pytest.raises(SystemExit):
        load(["--config", str(file)])
    assert "[gateway] has no setting named worker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[gatway]\nlisten = 'a:1'\n", "gatway: no table of a service; there are [gateway], [kv_manager], [worker]"),
        (b"listen = 'a:1'\n", "listen: no table of a service"),
        (b"[gateway]\nlisten = 'caf\xe9:1'\n", "'utf-8' codec can't decode byte 0xe9"),
        (b"gateway = 1\n", "[gateway] must be a table"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.toml"
    file.write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        load(["--config", str(file)])
    assert caught.value.code == 2
    assert f"{file}: {said}" in capsys.readouterr().err


def test_help_names_every_setting_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for name in GatewaySettings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown
        assert f"OCTAVO_GATEWAY_{name.upper()}" in shown
