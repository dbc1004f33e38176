"""What ``--help`` says reaches the reader whole."""

import subprocess
import sys
from typing import Any

import pytest
import typer

from cli.commands import app

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("estimate", "tokens per sequence [default: 8192, or the model's]"),
        ("inspect", "pool's name [default: the only one]"),
        ("generate", "[default: $OCTAVO_ADDRESS, else 127.0.0.1:50050]"),
    ],
)
def test_defaults_in_brackets_are_no_markup(octavo: Any, command: str, told: str) -> None:
    done = octavo([command, "--help"])
    assert done.returncode == 0
    assert told in " ".join(done.stdout.split())


def commands(command: Any, name: str = "octavo") -> dict[str, Any]:
    """Every command by its whole name."""
    below = getattr(command, "commands", None)
    if below is None:
        return {name: command}
    return {key: one for word, inner in below.items() for key, one in commands(inner, f"{name} {word}").items()}


def test_whoever_calls_a_service_takes_the_same_options() -> None:
    """An address means TLS too; a gateway's address means a key, which nobody else asks for."""
    flags = {
        name: {flag for parameter in command.params for flag in parameter.opts}
        for name, command in commands(typer.main.get_command(app)).items()
    }
    callers = {name for name in flags if flags[name] & {"--address", "--target"}}
    assert callers > {"octavo inspect", "octavo generate", "octavo replay", "octavo simulate", "octavo drain worker"}
    for name in callers:
        assert {"--tls", "--tls-ca", "--tls-certificate", "--tls-key"} <= flags[name], name
    assert {name for name in flags if "--api-key" in flags[name]} == {
        *("octavo generate", "octavo chat", "octavo workers", "octavo tenants", "octavo drain gateway")
    }


def test_help_imports_nothing_that_only_a_command_needs() -> None:
    """It takes 0.2 s of one core, most of it typer's own; gRPC alone would add a quarter to that."""
    heavy = ["grpc", "google.protobuf", "numpy", "pydantic", "rich", "starlette", "torch", "uvicorn"]
    code = f"import sys; from cli.commands import app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
