"""Amounts of memory: read from a flag, written for people."""

import re

from cli.failures import CliError

UNITS = {"": 2**30}
"""Bytes by unit, in lower case. A number without one counts GiB, as the worker's ``--kv-memory-gib`` does."""
for _power, _letter in enumerate("kmgt", start=1):
    UNITS |= {f"{_letter}ib": 2 ** (10 * _power), f"{_letter}b": 10 ** (3 * _power)}
_AMOUNT = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[a-z]*)")


def read_memory(text: str) -> int:
    """Bytes of an amount such as ``50GiB``, ``80 GB`` or ``1.5`` (GiB), rounded down. Raises CliError."""
    found = _AMOUNT.fullmatch(text.strip().lower())
    if found is None or found["unit"] not in UNITS:
        raise CliError(f"--memory: must be an amount such as 50GiB or 80GB, found {text!r}")
    return int(float(found["number"]) * UNITS[found["unit"]])


def human(num_bytes: int) -> str:
    """The amount in its largest binary unit, to two places: ``2 MiB``, ``67.5 KiB``."""
    value, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{f'{value:,.2f}'.rstrip('0').rstrip('.')} {unit}"
