"""The one table that comes out, and the clock that keeps the whole under its limit."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One line: `value` in `unit`, and what it is measured against. `passed` is None for figures without a bound."""

    part: str
    name: str
    value: float
    unit: str
    against: str
    passed: bool | None = None


class Table:
    """Collects rows. Past the deadline no further part starts, and the table says which ones are missing."""

    def __init__(self, seconds: float) -> None:
        self.rows: list[Row] = []
        self.skipped: list[str] = []
        self._deadline = time.monotonic() + seconds

    def has_time_for(self, name: str, seconds: float) -> bool:
        enough = time.monotonic() + seconds < self._deadline
        if not enough:
            self.skipped.append(name)
        return enough

    def bounded(self, part: str, name: str, value: float, bound: float) -> None:
        """A value that must not exceed its bound. NaN exceeds every bound."""
        self.rows.append(Row(part, name, value, "", f"at most {bound:g}", value <= bound))

    def measured(self, part: str, name: str, value: float, unit: str, against: str) -> None:
        self.rows.append(Row(part, name, value, unit, against))

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.passed is False]

    def show(self, heading: str) -> None:
        width = max((len(row.name) for row in self.rows), default=0)
        lines = [heading]
        for row in self.rows:
            mark = {True: "ok  ", False: "FAIL", None: "    "}[row.passed]
            lines.append(f"{mark} {row.part:<10} {row.name:<{width}} {row.value:>10.4g} {row.unit:<8} {row.against}")
        lines += [f"SKIP {name}: out of time" for name in self.skipped]
        lines.append(f"{len(self.failed)} failed, {len(self.skipped)} skipped")
        print("\n".join(lines))
        if folder := os.environ.get("OUT"):
            Path(folder, "gpu_check.txt").write_text("\n".join(lines) + "\n")
            Path(folder, "gpu_check.json").write_text(json.dumps([asdict(row) for row in self.rows], indent=1))
