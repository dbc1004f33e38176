"""Values that no message can carry, and streams that break: one line each, never a traceback."""

from typing import Any

import pytest

pytestmark = pytest.mark.e2e

# 0xff starts no character of UTF-8; Python's strings hold it as the lone surrogate U+DCFF.
BAD = b"a\xff"
BAD_TEXT = BAD.decode(errors="surrogateescape")
NOT_UTF8 = "octavo: text must be UTF-8, found byte 0xff at character 1\n"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        # One past int32, int32, int64 and uint64; the sequence before the first.
        (["generate", "hi", "--max-tokens", str(2**31)], "--max-tokens"),
        (["generate", "hi", "--top-k", str(2**31)], "--top-k"),
        (["generate", "hi", "--seed", str(2**63)], "--seed"),
        (["chat", "--max-tokens", str(2**31)], "--max-tokens"),
        (["chat", "--seed", str(2**63)], "--seed"),
        (["inspect", "--seq", str(2**64)], "--seq"),
        (["inspect", "--seq", "-1"], "--seq"),
        (["inspect", "--block", str(2**32)], "--block"),
        (["serve", "--port", str(2**16)], "--port"),
        (["serve", "--worker-metrics-port", "-1"], "--worker-metrics-port"),
        (["serve", "--grace-seconds", "nan"], "--grace-seconds"),
        (["serve", "--grace-seconds", "inf"], "--grace-seconds"),
        (["serve", "--grace-seconds", "-1"], "--grace-seconds"),
    ],
)
def test_an_option_out_of_range_is_named(octavo: Any, arguments: list[str], option: str) -> None:
    done = octavo(arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Invalid value for '{option}'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "hi", "--address"],
        ["workers", "--address"],
        ["check", "--address"],
        ["drain", "worker", "--address"],
        ["simulate", "--lengths", "alpaca", "--address"],
        ["inspect", "--web", "--web-listen"],
    ],
)
@pytest.mark.parametrize("address", ["gateway", "127.0.0.1:65536", "127.0.0.1:1x"])
def test_what_is_no_address_is_called_nowhere(octavo: Any, arguments: list[str], address: str) -> None:
    # gRPC calls port 65536 + n at n.
    done = octavo([*arguments, address])
    assert done.returncode == 1
    assert "must be host:port, port 0 to 65535" in done.stderr
    assert address in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_number_that_no_message_holds_is_one_line(octavo: Any) -> None:
    done = octavo(["generate", "hi", "--seed", str(-(2**63) - 1)])
    assert (done.returncode, done.stderr) == (1, f"octavo: Value out of range: {-(2**63) - 1}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", BAD],
        ["generate", "hi", "--stop", BAD],
        ["generate", "hi", "--model", BAD],
        ["chat", "--system", BAD],
    ],
)
def test_arguments_that_are_no_utf8_are_one_line(gateway: Any, octavo: Any, arguments: list[str | bytes]) -> None:
    done = octavo([*arguments, "--address", gateway.address])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(NOT_UTF8)
    assert "Traceback" not in done.stderr
    assert gateway.servicer.requests == []


def test_a_prompt_from_stdin_that_is_no_utf8_is_one_line(gateway: Any, octavo: Any) -> None:
    done = octavo(["generate", "-", "--address", gateway.address], stdin=BAD_TEXT)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", NOT_UTF8)


def test_a_chat_goes_on_after_lines_that_are_no_utf8(gateway: Any, octavo: Any) -> None:
    lines = ["hello", BAD_TEXT, f"/system {BAD_TEXT}", "again"]
    done = octavo(["chat", "--system", "S", "--address", gateway.address], stdin="\n".join(lines))
    assert done.returncode == 0
    assert done.stderr.count(NOT_UTF8) == 2
    # Neither line changed anything: [s u], then [s u a u].
    assert done.stdout == "2 messages\n4 messages\n\n"
    assert [request.messages[0].content for request in gateway.servicer.requests] == ["S", "S"]


def test_a_stream_that_breaks_is_no_absent_gateway(gateway: Any, octavo: Any) -> None:
    done = octavo(["generate", "break off", "--address", gateway.address])
    line = f"octavo: the answer broke off: unavailable from the gateway at {gateway.address}: Socket closed\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "break", line)


def test_a_chat_says_that_an_answer_broke_off_and_goes_on(gateway: Any, octavo: Any) -> None:
    done = octavo(["chat", "--address", gateway.address], stdin="break off\nhello\n")
    assert done.returncode == 0
    assert f"octavo: the answer broke off: unavailable from the gateway at {gateway.address}" in done.stderr
    assert [len(request.messages) for request in gateway.servicer.requests] == [1, 1]
