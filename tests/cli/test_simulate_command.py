"""``octavo simulate`` as a command: tables, JSON, pictures, a manager in here and one at an address."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from processes import ServiceProcess

from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc
from service.channels import open_channel

pytestmark = pytest.mark.e2e

SMALL = ["simulate", "--lengths", "alpaca", "--requests", "120", "--memory", "2"]


def rows_of(octavo: Any, *arguments: str) -> Any:
    done = octavo([*arguments, "--json"])
    assert done.returncode == 0
    # A slow machine is told how far it is.
    assert [line for line in done.stderr.splitlines() if not re.fullmatch(r".+: [\d,]+ of [\d,]+", line)] == []
    return json.loads(done.stdout)


def test_allocators_side_by_side(octavo: Any) -> None:
    rows = {row["allocator"]: row for row in rows_of(octavo, *SMALL, "--block-sizes", "16,1")}
    assert list(rows) == [
        *(f"{name}, {place}" for place in ("buddy", "first fit") for name in ("maximum", "power of two", "oracle")),
        "paged, block 16",
        "paged, block 1",
    ]
    for row in rows.values():
        assert sum(row["shares"].values()) == pytest.approx(1)
    tokens = {name: row["shares"]["tokens"] for name, row in rows.items()}
    # 2 GiB are 2,621 tokens of OPT-13B: one sequence of 2,048.
    assert rows["maximum, buddy"]["batch"] == pytest.approx(1, abs=0.01)
    assert (
        tokens["maximum, buddy"] < tokens["power of two, buddy"] < tokens["oracle, buddy"] < tokens["paged, block 16"]
    )
    assert rows["paged, block 1"]["shares"]["internal"] < rows["paged, block 16"]["shares"]["internal"]
    table = octavo(SMALL)
    assert table.returncode == 0
    assert table.stdout.startswith("120 alpaca-like requests, 2,621 tokens of memory, opt-13b on a100-40gb\n")
    assert "paged, block 16" in table.stdout


def test_a_seed_makes_the_same_figures_here_and_at_a_manager_elsewhere(octavo: Any) -> None:
    arguments = ("simulate", "--lengths", "alpaca", "--requests", "12", "--memory", "2", "--beams", "3", "--seed", "5")
    here = rows_of(octavo, *arguments)
    assert here[0]["sharing_saved"] > 0
    with ServiceProcess("kv_manager", "--listen", "127.0.0.1:0", "--metrics", "") as manager:
        address = manager.wait_ready().ready["grpc"]
        assert rows_of(octavo, *arguments, "--address", address) == here
        with open_channel(address) as channel:
            stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
            assert list(stub.ListPools(inspect_pb2.ListPoolsRequest()).pools) == []
        manager.stop()


def test_a_trace_over_time(octavo: Any) -> None:
    hours = rows_of(octavo, "simulate", "--trace", "azure", "--requests", "60", "--speed", "1,4")
    assert [(hour["speed"], hour["allocator"]) for hour in hours] == [
        (speed, name) for speed in (1, 4) for name in ("paged, block 16", "maximum, buddy", "oracle, buddy")
    ]
    for hour in hours:
        assert hour["rejected"] == 0
        assert hour["moments"]
    table = octavo(["simulate", "--trace", "azure", "--requests", "20"])
    # 50 GiB of 128 KiB a token.
    assert table.stdout.startswith("20 requests, llama-3.1-8b on a100-80gb\npaged, block 16, 409,600 tokens, ")


def test_what_a_trace_shares(octavo: Any) -> None:
    done = octavo(["simulate", "--trace", "mooncake", "--capacities", "500,2000"])
    assert done.returncode == 0
    assert "Belady" in done.stdout
    assert "unbounded pool: " in done.stdout
    assert "every prompt padded to whole blocks: " in done.stdout


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_pictures_are_the_same_bytes_again(octavo: Any, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    runs = (
        ["simulate", "--lengths", "alpaca", "--requests", "30", "--memory", "1"],
        ["simulate", "--trace", "azure", "--requests", "10"],
        ["simulate", "--trace", "mooncake", "--requests", "40", "--capacities", "400,600"],
    )
    for number, arguments in enumerate(runs[: 1 if kind == "png" else None]):
        pictures = [tmp_path / f"{number}-{copy}.{kind}" for copy in range(2 if number == 0 else 1)]
        for picture in pictures:
            assert octavo([*arguments, "--plot", str(picture)]).returncode == 0
        start = b"<?xml" if kind == "svg" else b"\x89PNG"
        assert {picture.read_bytes()[: len(start)] for picture in pictures} == {start}
        assert len({picture.read_bytes() for picture in pictures}) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lengths", "none"], "--lengths is one of sharegpt, alpaca, not 'none'"),
        (["--samples", "2", "--beams", "2"], "--samples or --beams, not both"),
        (["--block-sizes", "16,0"], "--block-sizes takes positive numbers between commas, not '16,0'"),
        (["--speed", "fast"], "--speed takes positive numbers between commas, not 'fast'"),
        (["--memory", "0.01", "--block-sizes", "64"], "the memory holds 13 tokens, a block 64"),
        (["--trace", "nowhere"], "nowhere: No such file or directory; samples: --trace azure or --trace mooncake"),
        (["--plot", "a.gif"], "a.gif: pictures are .svg or .png"),
        (["--plot", "no/such/a.svg"], "no/such/a.svg: no such folder"),
        (["--paper", "--plot", "a.svg"], "--paper prints a table; --plot draws the other simulations"),
    ],
)
def test_what_cannot_be_is_one_line(octavo: Any, arguments: list[str], said: str) -> None:
    done = octavo(["simulate", *arguments])
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"octavo: {said}\n")
