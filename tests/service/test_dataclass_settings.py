"""Settings of a dataclass: what a configuration file says in the wrong type is refused by its name."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from service.settings import load, setting


@dataclass(frozen=True, slots=True)
class Settings:
    blocks: int = setting(1, "whole")
    seconds: float = setting(1.0, "any")


def read(folder: Path, text: str) -> Settings:
    file = folder / "octavo.toml"
    file.write_text(f"[kv_manager]\n{text}\n")
    arguments = ["--config", str(file)]
    return load(Settings, program="x", table="kv_manager", prefix="X_", arguments=arguments, environ={})


@pytest.mark.unit
@pytest.mark.parametrize("number", ["1.5", "2.0", "inf", "nan", "true", "[1]"])
def test_a_whole_number_is_not_made_of_another(tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        read(tmp_path, f"blocks = {number}")
    assert refused.value.code == 2
    assert "[kv_manager] blocks: " in capsys.readouterr().err


@pytest.mark.unit
def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert read(tmp_path, "blocks = 7\nseconds = 2") == Settings(7, 2.0)
