"""Which flags the children get, and where they listen."""

import socket
from pathlib import Path

import pytest

from cli import stack
from cli.failures import CliError

pytestmark = pytest.mark.unit

ADDRESSES = {
    stack.GATEWAY: "127.0.0.1:1",
    stack.WORKER: "127.0.0.1:2",
    stack.WORKER_METRICS: "127.0.0.1:3",
    stack.MANAGER: "127.0.0.1:4",
    stack.MANAGER_METRICS: "127.0.0.1:5",
    stack.GATEWAY_HTTP: "127.0.0.1:6",
}


def test_an_address_is_flag_then_environment_then_file_then_default(tmp_path: Path) -> None:
    config = tmp_path / "octavo.toml"
    config.write_text('[worker]\nlisten = "file:3"\n')
    environ = {"OCTAVO_WORKER_LISTEN": "environment:2"}
    flag = stack.StackOptions(host="h", ports={stack.WORKER: 1}, config=config)
    no_flag = stack.StackOptions(host="h", ports={stack.WORKER: None}, config=config)
    assert stack.listen_address(stack.WORKER, flag, environ) == "h:1"
    assert stack.listen_address(stack.WORKER, no_flag, environ) == "environment:2"
    assert stack.listen_address(stack.WORKER, no_flag, {}) == "file:3"
    assert stack.listen_address(stack.MANAGER, no_flag, {}) == "h:50052"


def test_a_missing_configuration_file_is_named(tmp_path: Path) -> None:
    options = stack.StackOptions(config=tmp_path / "none.toml")
    with pytest.raises(CliError, match=r"none\.toml does not exist"):
        stack.listen_address(stack.WORKER, options, {})


def test_a_taken_port_names_the_service_and_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CliError, match=rf"model worker cannot listen on {address}: .* in use; .* --worker-port$"):
            stack.check_free({stack.WORKER: address})


def test_two_services_cannot_share_a_port() -> None:
    with pytest.raises(CliError, match=r"KV manager and gateway both want 127\.0\.0\.1:7: change --manager-port"):
        stack.check_free({stack.GATEWAY: "127.0.0.1:7", stack.MANAGER: "127.0.0.1:7"})


def test_port_0_is_always_free() -> None:
    stack.check_free({stack.GATEWAY: "127.0.0.1:0", stack.MANAGER: "127.0.0.1:0"})


@pytest.mark.parametrize("address", ["127.0.0.1:65536", "127.0.0.1:x", "203.0.113.1:50050"])
def test_an_address_that_cannot_be_bound_is_refused(address: str) -> None:
    with pytest.raises(CliError, match="the gateway cannot listen on"):
        stack.check_free({stack.GATEWAY: address})


def test_options_not_given_are_left_to_the_services() -> None:
    options = stack.StackOptions(
        common={"grace_seconds": 10.0, "log_level": None},
        worker={"model": Path("m"), "block_size": 7, "num_blocks": None},
        manager={"lease_seconds": None},
    )
    assert stack.manager_command(options, ADDRESSES) == [
        *("-m", "kv_manager", "--grace-seconds", "10.0", "--listen", "127.0.0.1:4", "--metrics", "127.0.0.1:5")
    ]
    assert stack.worker_command(options, ADDRESSES, "127.0.0.1:9") == [
        *("-m", "model_worker", "--grace-seconds", "10.0", "--model", "m", "--block-size", "7"),
        *("--listen", "127.0.0.1:2", "--metrics", "127.0.0.1:3", "--manager", "127.0.0.1:9"),
    ]
    assert stack.gateway_command(options, ADDRESSES, ["a:1", "b:2"]) == [
        *("-m", "gateway", "--grace-seconds", "10.0", "--listen", "127.0.0.1:1", "--http-listen", "127.0.0.1:6"),
        *("--workers", "a:1,b:2"),
    ]


def test_an_endpoint_that_is_left_out_is_switched_off() -> None:
    addresses = {endpoint: address for endpoint, address in ADDRESSES.items() if endpoint is not stack.GATEWAY_HTTP}
    command = stack.gateway_command(stack.StackOptions(), addresses, ["a:1"])
    assert command[command.index("--http-listen") + 1] == ""


def test_the_embedded_manager_has_flags_of_its_own() -> None:
    options = stack.StackOptions(worker={"model": Path("m")}, manager={"lease_seconds": 3.0})
    assert stack.embedded_command(options, ADDRESSES) == [
        *("-m", "cli.embedded_worker", "--lease-seconds", "3.0", "--listen", "127.0.0.1:4", "--"),
        *("--model", "m", "--listen", "127.0.0.1:2", "--metrics", "127.0.0.1:3"),
    ]
