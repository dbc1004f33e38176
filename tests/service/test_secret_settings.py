"""What a setting keeps secret is in no error, wherever it came from."""

from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from model_worker.settings import WorkerSettings
from service import model_settings
from service.model_settings import ServiceSettings, is_secret

pytestmark = pytest.mark.unit

SERVICES: dict[str, type[ServiceSettings]] = {"gateway": GatewaySettings, "worker": WorkerSettings}
SECRETS = {"gateway": "registration_token", "worker": "gateway_token"}
REQUIRED = {"gateway": [], "worker": ["--model=m"]}
SHORT = "hunter2-hunter2"


def refused(table: str, capsys: pytest.CaptureFixture[str], *arguments: str, config: Path | None = None) -> str:
    """What is written when the settings are refused."""
    given = [*REQUIRED[table], *arguments, *([] if config is None else [f"--config={config}"])]
    with pytest.raises(SystemExit) as ended:
        model_settings.load(SERVICES[table], program=table, table=table, arguments=given)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize("table", SERVICES)
def test_every_text_that_is_called_a_token_is_a_secret(table: str) -> None:
    fields = SERVICES[table].model_fields
    called = {name for name, field in fields.items() if name.endswith(("token", "secret", "password", "api_key"))}
    assert {name for name, field in fields.items() if is_secret(field)} == called == {SECRETS[table]}


@pytest.mark.parametrize("table", SERVICES)
def test_a_wrong_secret_is_named_and_not_repeated(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = SECRETS[table]
    flag, variable = f"--{name.replace('_', '-')}", f"OCTAVO_{table.upper()}_{name.upper()}"
    file = tmp_path / "octavo.toml"
    rule = "must be 16 characters or more, none of them a space\n"

    said = refused(table, capsys, f"{flag}={SHORT}")
    assert said.endswith(f"error: {flag}: {rule}")
    assert SHORT not in said

    file.write_text(f'[{table}]\n{name} = "{SHORT}"\n')
    said = refused(table, capsys, config=file)
    assert said.endswith(f"error: [{table}] {name}: {rule}")
    assert SHORT not in said

    file.write_text(f"[{table}]\n{name} = 4711\n")
    said = refused(table, capsys, config=file)
    assert f"[{table}] {name}: " in said
    assert "4711" not in said

    monkeypatch.setenv(variable, SHORT)
    said = refused(table, capsys)
    assert said.endswith(f"error: ${variable}: {rule}")
    assert SHORT not in said


@pytest.mark.parametrize("table", SERVICES)
@pytest.mark.parametrize("words", [[f"--gateway-tokne={SHORT}"], ["--gateway-tokne", SHORT], [SHORT]])
def test_the_value_of_a_misspelled_flag_is_not_repeated(
    table: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(table, capsys, *words)
    assert "unrecognized arguments: " in said
    assert SHORT not in said
    assert ("--gateway-tokne" in said) is (words != [SHORT])


@pytest.mark.parametrize("table", SERVICES)
def test_nothing_stands_for_the_flags_that_begin_like_it(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse names what an abbreviation might mean together with its value."""
    for short in ("--ga", "--gateway", "--registration", "--m"):
        said = refused(table, capsys, f"{short}={SHORT}")
        assert said.endswith(f"error: unrecognized arguments: {short}\n")
        assert SHORT not in said


def test_other_values_are_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused("gateway", capsys, "--max-queued=-7").endswith("found '-7'\n")
