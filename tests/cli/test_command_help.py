"""What ``--help`` says reaches the reader whole."""

from typing import Any

import pytest

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
