"""Request traces: readers for the formats of Azure's and Mooncake's public traces, gzipped or not.

    Azure LLM inference trace 2023   CSV: TIMESTAMP,ContextTokens,GeneratedTokens
    Mooncake, FAST'25 release        JSON lines: timestamp (ms), input_length, output_length, hash_ids

A Mooncake hash id stands for ``MOONCAKE_BLOCK`` tokens and all tokens before them: equal ids are equal prefixes. The
last id of a prompt covers what is left.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from cli.failures import CliError
from cli.simulate.workload import Request

MOONCAKE_BLOCK = 512
AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
SAMPLES = {"azure": "azure_conversation_sample.csv", "mooncake": "mooncake_conversation_sample.jsonl"}
"""Samples that come with the package, by the name that ``--trace`` takes; data/NOTICE.md has their licences."""


class Prompt(NamedTuple):
    """A prompt of which is known what it shares with others.

    Attributes:
        request: when it came, and its lengths.
        blocks: an id for every ``MOONCAKE_BLOCK`` tokens begun.
    """

    request: Request
    blocks: tuple[int, ...]

    @property
    def full_blocks(self) -> int:
        """Blocks that its tokens fill."""
        return self.request.prompt_tokens // MOONCAKE_BLOCK


def read_trace(name: str) -> list[Request] | list[Prompt]:
    """A trace file, or one of ``SAMPLES`` by its name.

    Returns:
        Requests of an Azure trace, prompts of a Mooncake trace.

    Raises:
        CliError: there is no such file, or it is no such trace; the line is named.
    """
    text = _text(name)
    if text.startswith("{"):
        return list(_mooncake(name, text.splitlines()))
    return list(_azure(name, text.splitlines()))


def _text(name: str) -> str:
    path = Path(name)
    try:
        if name in SAMPLES and not path.exists():
            data = resources.files("cli.simulate").joinpath("data", SAMPLES[name]).read_bytes()
        else:
            data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    except OSError as error:
        raise CliError(f"{name}: {error.strerror or error}; samples: --trace {' or --trace '.join(SAMPLES)}") from error
    except (EOFError, UnicodeDecodeError) as error:
        raise CliError(f"{name}: no trace: {error}") from error


def _azure(name: str, lines: list[str]) -> Iterator[Request]:
    rows = csv.reader(lines)
    if next(rows, None) != AZURE_COLUMNS:
        raise CliError(f"{name}: neither JSON lines nor a CSV with the columns {','.join(AZURE_COLUMNS)}")
    first: datetime | None = None
    for row in rows:
        try:
            stamp, prompt_tokens, output_tokens = row
            at = datetime.fromisoformat(stamp)
            first = first or at
            yield _request((at - first).total_seconds(), int(prompt_tokens), int(output_tokens))
        except ValueError as error:
            raise CliError(f"{name}:{rows.line_num}: {error}") from error


def _mooncake(name: str, lines: Iterable[str]) -> Iterator[Prompt]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            request = _request(row["timestamp"] / 1000, row["input_length"], row["output_length"])
            blocks = tuple(map(int, row["hash_ids"]))
            begun = -(-request.prompt_tokens // MOONCAKE_BLOCK)
            if len(blocks) != begun or min(blocks) < 0:
                raise ValueError(f"{len(blocks)} hash ids from 0 on, {request.prompt_tokens} tokens have {begun}")
            yield Prompt(request, blocks)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else error
            raise CliError(f"{name}:{number}: {reason}") from error


def _request(arrival: float, prompt_tokens: int, output_tokens: int) -> Request:
    if arrival < 0 or prompt_tokens < 1 or output_tokens < 0:
        raise ValueError(f"at {arrival} s, {prompt_tokens} tokens in and {output_tokens} out is no request")
    return Request(arrival, prompt_tokens, max(1, output_tokens))
