"""API keys of ``octavo generate`` and ``octavo chat``: they go with every call, and into no message."""

from typing import Any

import pytest

pytestmark = pytest.mark.e2e

KEY = "key-0123456789abcdef"
BEARER = f"Bearer {KEY}"


def test_the_flag_and_the_variable_go_with_every_call(gateway: Any, octavo: Any) -> None:
    octavo(["generate", "a", "--api-key", KEY, "--address", gateway.address])
    octavo(["generate", "a", "--address", gateway.address], environ={"OCTAVO_API_KEY": KEY})
    octavo(["generate", "a", "--api-key", KEY, "--address", gateway.address], environ={"OCTAVO_API_KEY": "another"})
    octavo(["generate", "a", "--address", gateway.address])
    assert gateway.servicer.keys == [BEARER, BEARER, BEARER, ""]


def test_a_chat_shows_the_key_to_list_models_and_at_each_turn(gateway: Any, octavo: Any) -> None:
    done = octavo(["chat", "--address", gateway.address], stdin="hello\nagain\n", environ={"OCTAVO_API_KEY": KEY})
    assert (done.returncode, done.stdout) == (0, "1 messages\n3 messages\n\n")
    assert gateway.servicer.keys == [BEARER] * 3


def test_options_and_cancels_pass_by_the_key(gateway: Any, octavo: Any) -> None:
    done = octavo(["generate", "hang", "--timeout", "3", "--api-key", KEY, "--address", gateway.address])
    assert done.returncode == 1
    assert "octavo: the answer broke off: deadline exceeded" in done.stderr
    assert gateway.servicer.cancelled.wait(30)


@pytest.mark.parametrize("bad", ["two words", "tab\tkey", "line\nkey", "schlüssel"])
def test_what_is_no_key_is_refused_without_being_repeated(gateway: Any, octavo: Any, bad: str) -> None:
    done = octavo(["generate", "a", "--api-key", bad, "--address", gateway.address])
    line = "octavo: the API key holds characters that no key has: printable ASCII without spaces is needed\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
    assert gateway.servicer.keys == []
