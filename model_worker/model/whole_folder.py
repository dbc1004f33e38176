"""Folders that appear whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target` that takes its place at the end; after an error it is removed.

    What stood at `target` stays until then, and is removed once it was replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    fresh, replaced = workplace / "fresh", workplace / "replaced"
    try:
        fresh.mkdir()
        yield fresh
        if target.exists():
            target.rename(replaced)
        fresh.rename(target)
    finally:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        shutil.rmtree(workplace)
