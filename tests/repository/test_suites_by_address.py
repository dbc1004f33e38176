"""The three suites as docs/conformance.md shows them: held against services that run, which are named by address."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from byte_model import byte_model
from processes import Stack, running_stack
from shown_commands import ROOT, Command, blocks, parsed, typed

pytestmark = [pytest.mark.e2e, pytest.mark.model]

PAGE = "docs/conformance.md"
# What shows that a suite found what its flags name; CI runs all of them on services of its own.
SELECTED = {
    "kv_manager": "attach or capabilities",
    "model_worker": "health or cancel",
    "gateway": "health or listed",
}


def suites() -> list[Command]:
    lines = [line for block in blocks(PAGE) if block.text.startswith("pytest") for line in typed(block)]
    return [command for line in lines for command in parsed(PAGE, line, fenced=True)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = byte_model(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=2048)
    sizes = {"num-blocks": 256, "dtype": "float32", "threads": 1}
    with running_stack(model, worker_flags=sizes, gateway_flags={"http-listen": "127.0.0.1:0"}) as stack:
        yield stack


@pytest.mark.parametrize("command", suites(), ids=lambda command: Path(command.words[1]).name)
def test_a_suite_finds_the_services_that_are_named(stack: Stack, command: Command) -> None:
    of = {
        "--target": stack.manager.address,
        "--manager": stack.manager.address,
        "--worker": stack.worker.address,
        "--gateway": stack.gateway.address,
        "--gateway-http": stack.gateway.ready["http"],
    }
    _, suite, *words = command.words
    flags = words[::2]
    assert set(words[1::2]) == {"HOST:PORT"}
    given = [word for flag in flags for word in (flag, of[flag])]
    # Without tests/support no service of ours could be started in place of one that is named.
    alone = ("-q", "-p", "no:cacheprovider", "-o", "pythonpath=", "-k", SELECTED[Path(suite).name])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", suite, *given, *alone], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 1
