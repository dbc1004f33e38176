"""What is host:port, and what no socket could ask for."""

import pytest

from service.settings import check_address

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:0",
        "[::1]:65535",
        "name.of.a.host.:80",
        f"{'a' * 63}.b:80",
        f"dns:///{'a' * 63}:80",
        "dns://[2001:db8::1]:53/host:80",
        f"ipv6:{','.join(['[2001:db8:85a3:8d3:1319:8a2e:370:7348]:80'] * 3)}",
    ],
)
def test_an_address_is_taken_as_it_is(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize("address", ["a..b:80", f"{'a' * 64}:80", "dns:///.b:80", "a:65536", "a b:80", ":80", "a"])
def test_what_no_socket_takes_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match=r"^must be host:port, "):
        check_address(address)
