"""What pyproject.toml asks for, without Octavo itself: ``python deploy/requirements.py EXTRA[,EXTRA]``.

An image installs it in a layer of its own, so that a changed line of code moves a few megabytes and not torch.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

OWN = re.compile(r"octavo\[([\w,-]+)\]")


def find_project() -> Path:
    """The nearest pyproject.toml: beside this file, as in an image, or above it, as in the repository."""
    here = Path(__file__).resolve().parent
    return next(path for folder in (here, here.parent) if (path := folder / "pyproject.toml").is_file())


def requirements(project: Path, extras: Iterable[str]) -> list[str]:
    """The requirements of the distribution and of its extras, those that an extra brings along included."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    found, wanted = list(table["dependencies"]), list(extras)
    for extra in wanted:
        for requirement in table["optional-dependencies"][extra]:
            if own := OWN.fullmatch(requirement):
                wanted += [name for name in own[1].split(",") if name not in wanted]
            else:
                found.append(requirement)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python {sys.argv[0]} EXTRA[,EXTRA]")
    sys.stdout.write("\n".join(requirements(find_project(), sys.argv[1].split(","))) + "\n")
