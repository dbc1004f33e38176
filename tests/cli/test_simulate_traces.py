"""Readers of traces, and what they say of files that are none."""

import gzip
from pathlib import Path

import pytest

from cli.failures import CliError
from cli.simulate.traces import SAMPLES, Prompt, read_trace
from cli.simulate.workload import Request

pytestmark = pytest.mark.unit

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = '{"timestamp": 500, "input_length": 513, "output_length": 9, "hash_ids": [3, 8]}\n'


def test_both_formats_plain_or_gzipped(tmp_path: Path) -> None:
    rows = AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:16:46.6805900,5,0\n"
    for data in (rows.encode(), gzip.compress(rows.encode()), rows.replace("\n", "\r\n").encode()):
        file = tmp_path / "azure"
        file.write_bytes(data)
        # A request without output has at least its first token.
        assert read_trace(str(file)) == [Request(0.0, 374, 44), Request(60.0, 5, 1)]
    file.write_text(MOONCAKE)
    assert read_trace(str(file)) == [Prompt(Request(0.5, 513, 9), (3, 8))]


def test_the_samples_are_there_with_their_notice() -> None:
    azure, mooncake = read_trace("azure"), read_trace("mooncake")
    assert (len(azure), azure[0]) == (500, Request(0.0, 374, 44))
    assert len(mooncake) == 300
    assert mooncake[0] == Prompt(Request(0.0, 6758, 500), tuple(range(14)))
    notice = (Path(__file__).parents[2] / "cli/simulate/data/NOTICE.md").read_text()
    for name in SAMPLES.values():
        assert name in notice


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n", "neither JSON lines nor a CSV with the columns"),
        ("", "neither JSON lines"),
        (AZURE + "2023-11-16 18:15:46,374\n", ":2: not enough values"),
        (AZURE + "2023-11-16 18:15:46,x,1\n", ":2: invalid literal"),
        (AZURE + "2023-11-16 18:15:46,0,1\n", ":2: at 0.0 s, 0 tokens in and 1 out is no request"),
        (AZURE + "2023-11-16 18:15:46,5,1\n2023-11-16 18:15:45,5,1\n", ":3: at -1.0 s"),
        (MOONCAKE + "{\n", ":2: Expecting"),
        (MOONCAKE.replace("hash_ids", "ids"), ":1: lacks 'hash_ids'"),
        (MOONCAKE.replace("513", "512"), ":1: 2 hash ids"),
        (MOONCAKE.replace("[3, 8]", "[3, -8]"), ":1: 2 hash ids from 0 on"),
    ],
)
def test_what_is_no_trace_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(CliError) as caught:
        read_trace(str(file))
    assert said in str(caught.value)


def test_a_missing_file_is_told_with_the_samples(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"No such file.*--trace azure or --trace mooncake"):
        read_trace(str(tmp_path / "none"))
    file = tmp_path / "cut.gz"
    file.write_bytes(gzip.compress(AZURE.encode())[:-5])
    with pytest.raises(CliError, match="no trace"):
        read_trace(str(file))
