"""The KV manager as it was when a proto baseline was released, started with today's environment.

The commit is the one that last changed ``protos/released/<name>.binpb``. A clone without that history cannot have it;
tests skip then, and say why.
"""

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from processes import REPOSITORY

RELEASED = REPOSITORY / "protos" / "released"
# All that a KV manager is made of.
_PARTS = ("kv_manager", "service", "protos")


class NoOlderBuild(Exception):
    """This clone does not hold the commit; the message says why."""


@dataclass(frozen=True, slots=True)
class Build:
    """A build of the services.

    Attributes:
        folder: where it lies, to be the working directory.
        commit: what it was made from.
    """

    folder: Path
    commit: str

    @property
    def environ(self) -> Mapping[str, str]:
        """What makes Python take this build's modules and stubs before those installed."""
        return {"PYTHONPATH": os.pathsep.join([str(self.folder), str(self.folder / "protos")])}


def older_build(baseline: Path, folder: Path) -> Build:
    """The build of a baseline's release, put into ``folder``.

    Raises:
        NoOlderBuild: there is no such commit here.
    """
    commit = _git("log", "-1", "--format=%H", "--", str(baseline.relative_to(REPOSITORY))).decode().strip()
    if not commit:
        raise NoOlderBuild(f"no commit of {baseline.name} in this clone")
    if commit in _cut_off():
        raise NoOlderBuild(f"this clone is shallow: the release of {baseline.name} lies before its first commit")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit, *_PARTS))) as archive:
        archive.extractall(folder, filter="data")
    return Build(folder, commit)


def _cut_off() -> set[str]:
    """Commits of a shallow clone whose parents it lacks: each looks as if it had made every file."""
    listed = REPOSITORY / _git("rev-parse", "--git-path", "shallow").decode().strip()
    return set(listed.read_text().split()) if listed.is_file() else set()


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise NoOlderBuild("git is not installed") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise NoOlderBuild(f"git {arguments[0]}: {said}") from error
