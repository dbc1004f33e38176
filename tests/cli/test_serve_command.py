"""``octavo serve`` with the demo model: three processes or two, started and ended as one."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.model]

PORTS = [
    *("--port", "0", "--http-port", "0", "--worker-port", "0", "--manager-port", "0"),
    *("--worker-metrics-port", "0", "--manager-metrics-port", "0"),
]
# 64 blocks of 16 tokens: room for 1,024 tokens.
SMALL = ["--threads", "2", "--num-blocks", "64", "--grace-seconds", "10"]
PROMPT = "The history of the Roman Empire begins with"


def serving(model: Path, *flags: str) -> ServiceProcess:
    return ServiceProcess("cli.main", "serve", "--model", str(model), *PORTS, *SMALL, *flags)


@pytest.fixture(scope="module", params=[(), ("--in-process",)], ids=["processes", "in-process"])
def served(request: pytest.FixtureRequest, demo_model: Path) -> Iterator[tuple[ServiceProcess, int]]:
    """A running stack, and how many children it should have."""
    with serving(demo_model, *request.param) as stack:
        yield stack.wait_ready(), 2 if request.param else 3


def test_text_streams_and_the_pool_adds_up(served: tuple[ServiceProcess, int], octavo: Any) -> None:
    stack, children = served
    assert len(psutil.Process(stack.process.pid).children()) == children
    command = ["generate", PROMPT, "--max-tokens", "24", "--temperature", "0", "--json", "--address", stack.address]
    first, second = (json.loads(octavo(command).stdout) for _ in range(2))
    assert first["text"] == second["text"]
    assert len(first["token_ids"]) == 24
    assert first["finish_reason"] == "length"
    assert "Rome" in first["text"]
    # The prompt and 24 tokens end in the second block; the repeat finds nothing of its own prompt of 8 in full blocks.
    assert (first["usage"]["prompt_tokens"], second["usage"]["cached_tokens"]) == (8, 0)
    inspected = octavo(["inspect", "--json", "--blocks", "--address", stack.ready["manager"]])
    assert inspected.returncode == 0
    answer = json.loads(inspected.stdout)
    stats = answer["pool"]["summary"]["stats"]
    assert stats["num_blocks"] == stats["free_blocks"] + stats["cached_blocks"] == 64
    assert len(answer["blocks"]["blocks"]) == 65  # the null block comes on top
    assert answer["pool"]["summary"]["connected"]
    assert answer["integrity"]["violations"] == []
    assert "every invariant holds" in octavo(["inspect", "--address", stack.ready["manager"]]).stdout


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--max-tokens", "0"], "max_tokens"),
        (["--max-tokens", "-1"], "max_tokens"),
        (["--top-p", "0"], "top_p"),
        (["--top-p", "2"], "top_p"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--stop", ""], "stop"),
        (["--model", "another"], "model"),
    ],
)
def test_bad_options_are_one_line_naming_the_field(
    served: tuple[ServiceProcess, int], octavo: Any, flags: list[str], named: str
) -> None:
    stack, _ = served
    done = octavo(["generate", PROMPT, *flags, "--address", stack.address])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("octavo: ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_prompts_that_cannot_be_served_are_one_line(served: tuple[ServiceProcess, int], octavo: Any) -> None:
    stack, _ = served
    # The pool of 64 blocks of 16 tokens bounds the context to 1,024; 5 MB exceed the gateway's 4 MiB.
    for prompt in ("", "word " * 1_500, "x" * 5_000_000):
        done = octavo(["generate", "-", "--address", stack.address], stdin=prompt)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("octavo: invalid argument: prompt: ")
        assert done.stderr.count("\n") == 1
        assert len(done.stderr) < 300  # the prompt is not said back


def test_ctrl_c_drains_gateway_worker_manager_in_this_order(demo_model: Path) -> None:
    with serving(demo_model) as stack:
        stack.wait_ready()
        children = psutil.Process(stack.process.pid).children()
        stack.signal(signal.SIGINT)
        assert stack.process.wait(60) == 0
    assert not any(child.is_running() for child in children)
    order = [line.split(" | ")[0].strip() for line in stack.log if "draining" in line]
    assert order == ["gateway", "model_worker", "kv_manager"]


def test_a_second_ctrl_c_kills_a_stream_that_goes_on(demo_model: Path) -> None:
    with serving(demo_model, "--grace-seconds", "600") as stack:
        stack.wait_ready()
        children = psutil.Process(stack.process.pid).children()
        command = ["generate", PROMPT, "--max-tokens", "900", "--ignore-eos", "--address", stack.address]
        with subprocess.Popen([sys.executable, "-m", "cli.main", *command], stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.read(1)  # the stream has begun
            # Two of one kind sent at once may arrive as one; either kind counts.
            stack.signal(signal.SIGINT)
            stack.signal(signal.SIGTERM)
            assert stack.process.wait(60) == 130  # far below the grace of 600 s
            assert client.wait(60) == 1
    assert not any(child.is_running() for child in children)


def test_the_first_death_ends_all_and_says_whose_it_was(demo_model: Path) -> None:
    with serving(demo_model) as stack:
        stack.wait_ready()
        children = psutil.Process(stack.process.pid).children()
        worker = next(child for child in children if "model_worker" in child.cmdline())
        worker.kill()
        assert stack.process.wait(60) == 1
    assert not any(child.is_running() for child in children)
    # Its last lines follow, indented: the model was loaded and the pool attached.
    at = next(
        index for index, line in enumerate(stack.log) if line.startswith("octavo: model_worker was killed by SIGKILL")
    )
    assert any("attached" in line for line in stack.log[at:])


def test_a_killed_parent_takes_its_children_along(demo_model: Path) -> None:
    with serving(demo_model) as stack:
        stack.wait_ready()
        children = psutil.Process(stack.process.pid).children()
        stack.process.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def test_a_taken_port_is_one_line(demo_model: Path, octavo: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = octavo(["serve", "--model", str(demo_model), *PORTS, "--port", port])
    assert done.returncode == 1
    assert done.stderr == (
        f"octavo: the gateway cannot listen on 127.0.0.1:{port}: address already in use; choose another --port\n"
    )


def test_a_setting_the_worker_refuses_is_among_the_last_lines(demo_model: Path, octavo: Any) -> None:
    done = octavo(["serve", "--model", str(demo_model), *PORTS, "--block-size", "0"])
    assert done.returncode == 1
    assert "octavo: model_worker ended with status 2; its last lines:" in done.stderr
    assert "block-size" in done.stderr.split("its last lines:")[1]
