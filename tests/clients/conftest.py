"""Services with the successor model, and client programs that each run in an environment of their own."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import successor_model
from processes import REPOSITORY, Stack, running_stack

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
ENVIRONMENTS = REPOSITORY / ".cache" / "clients"
BLOCK, BLOCKS = 16, 2_048


class Program:
    """A client program that answers checks, started at the first one."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def facts(self, check: str) -> Any:
        """What the program found; fails with its traceback."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROGRAMS
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"check": check}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program ended with {self._process.wait()}"
        reply = json.loads(line)
        assert "facts" in reply, reply["error"]
        return reply["facts"]

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = successor_model.write(tmp_path_factory.mktemp("successor") / "successor")
    flags = {"num-blocks": BLOCKS, "block-size": BLOCK, "threads": 1, "dtype": "float32"}
    with running_stack(model, worker_flags=flags, gateway_flags={"http-listen": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture(scope="session")
def program(stack: Stack) -> Iterator[Callable[[str], Program]]:
    """The program of a client, by its name; its environment is made when it is not there."""
    programs: dict[str, Program] = {}
    base_url = f"http://{stack.gateway.ready['http']}/v1"
    grpclib_stubs = str(ENVIRONMENTS / "grpclib" / "stubs")
    commands = {
        "openai-python": ("openai", "openai_python.py", [base_url]),
        "openai-node": ("node", "openai_node.mjs", [base_url]),
        "litellm": ("litellm", "litellm_client.py", [base_url]),
        "langchain-openai": ("langchain", "langchain_client.py", [base_url]),
        "grpc-js": ("node", "grpc_js.mjs", [stack.gateway.address, str(REPOSITORY / "protos")]),
        "grpclib": ("grpclib", "grpclib_client.py", [stack.gateway.address, grpclib_stubs]),
        "reflection": ("reflection", "reflection_client.py", [stack.gateway.address]),
    }

    def start(client: str) -> Program:
        if client not in programs:
            environment, script, arguments = commands[client]
            subprocess.run([str(HERE / "setup.sh"), environment], check=True, timeout=280)
            home = ENVIRONMENTS / environment
            if environment == "node":
                # Node finds packages beside the program, so the programs stand in the environment too.
                (home / "programs").unlink(missing_ok=True)
                (home / "programs").symlink_to(PROGRAMS)
                command = ["node", "--preserve-symlinks", "--preserve-symlinks-main", str(home / "programs" / script)]
            else:
                command = [str(home / "bin" / "python"), script]
            programs[client] = Program([*command, *arguments])
        return programs[client]

    yield start
    for one in programs.values():
        one.end()
