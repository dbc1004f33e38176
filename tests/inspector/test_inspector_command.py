"""``octavo inspect --web``: the page straight from a manager, for this machine's own browser alone."""

import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from processes import REPOSITORY, ServiceProcess
from typer.testing import CliRunner

from cli.commands import app
from cli.tour.pool import POOL, TourPool
from cli.tour.scenes import SCENES
from gateway.inspector.token_ids import TokenIds
from kv_manager.core.manager import Manager
from octavo.kv.v1 import watch_pb2

SECONDS = 180.0


@pytest.fixture(scope="module")
def manager() -> Iterator[str]:
    with ServiceProcess("kv_manager", "--listen=127.0.0.1:0", "--metrics=") as process:
        yield process.wait_ready().address


@pytest.mark.e2e
def test_the_command_serves_the_page_and_ends_at_an_interrupt(manager: str) -> None:
    command = [sys.executable, "-m", "cli.main", "inspect", "--web", "--web-listen=127.0.0.1:0", "--address", manager]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        stuck = threading.Timer(SECONDS, process.kill)
        stuck.start()
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[0]
            address = url.removeprefix("http://").removesuffix("/inspect")
            assert get(address, "/inspect") == 200
            assert get(address, "/inspect/main.js") == 200
            assert get(address, "/inspect/pools") == 200
            assert get(address, "/inspect/watch?manager=another&pool=x") == 404
            # A name that somebody else has made lead here.
            assert get(address, "/inspect/pools", host="rebound.test") == 400
            process.send_signal(2)
            assert process.wait(SECONDS) == 130
        finally:
            stuck.cancel()
            process.kill()


def get(address: str, path: str, host: str = "") -> int:
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    try:
        connection.request("GET", path, headers={"host": host} if host else {})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.unit
@pytest.mark.parametrize("more", [["--live"], ["--blocks"], ["--json"], ["--seq=1"], ["--block=1"]])
def test_the_page_goes_with_no_other_view(more: list[str]) -> None:
    refused = CliRunner().invoke(app, ["inspect", "--web", *more])
    assert "goes with neither" in str(refused.exception)


@pytest.mark.unit
async def test_token_ids_are_known_by_digest_until_it_is_gone() -> None:
    """The tour's words, four to a block, as told by a manager whose operator allowed it."""

    class Silent:
        """A manager that says nothing by itself: the test hears for it."""

        def Watch(self, request: watch_pb2.WatchRequest) -> "Silent":
            return self

        def __aiter__(self) -> "Silent":
            return self

        async def __anext__(self) -> watch_pb2.WatchResponse:
            raise StopAsyncIteration

    pool = TourPool(Manager(watch_token_ids=True))
    SCENES[0](pool)
    request = watch_pb2.WatchRequest(pool=POOL, kinds=[watch_pb2.EVENT_KIND_CACHE], include_token_ids=True, batch_ms=1)
    watch = pool.manager.watch(request, lambda: None)
    tokens = TokenIds(Silent(), POOL)  # type: ignore[arg-type]
    seen = 0
    for play in SCENES[1:]:
        play(pool)
        for response in watch.poll():
            if response is not None:
                tokens.hear(response)
        held = {info.digest for info in pool.blocks() if info.digest}
        known = {digest: tokens.get(digest) for digest in held}
        assert all(ids is None or len(ids) == 4 for ids in known.values())
        seen += sum(ids is not None for ids in known.values())
        assert tokens.get(b"\0" * 32) is None
    assert seen > 10
    tokens.end()
    assert all(tokens.get(digest) is None for digest in held)
