"""Where commands call: the flag, else the variable, else the usual port here."""

import pytest

from cli import options


@pytest.mark.unit
@pytest.mark.parametrize(
    ("address_of", "variable", "usual"),
    [
        (options.gateway_address, "OCTAVO_ADDRESS", "127.0.0.1:50050"),
        (options.worker_address, "OCTAVO_WORKER_ADDRESS", "127.0.0.1:50051"),
        (options.manager_address, "OCTAVO_MANAGER_ADDRESS", "127.0.0.1:50052"),
    ],
)
def test_an_empty_variable_says_nothing(
    monkeypatch: pytest.MonkeyPatch, address_of: object, variable: str, usual: str
) -> None:
    assert callable(address_of)
    monkeypatch.setenv(variable, "")
    assert address_of("") == usual
    monkeypatch.setenv(variable, "there:1")
    assert address_of("") == "there:1"
    assert address_of("here:2") == "here:2"
