"""A model's files, as far as they can be looked at without torch: importing it takes seconds, and a look does not.

``check_model`` is for whoever is about to import it. What it raises, loading would raise as well, later.
"""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from model_worker.model.config import architecture_of
from model_worker.model.errors import CheckpointError
from model_worker.model.refusals import refuse_unsupported

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
GGUF_MAGIC = b"GGUF"

_HUB_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")


class HubId(NamedTuple):
    """`owner/name[@revision]`."""

    name: str
    revision: str | None


def hub_id(model: str | Path) -> HubId | None:
    """What `model` names on the hub, None when it can be a path alone."""
    named = _HUB_ID.fullmatch(str(model))
    return None if named is None else HubId(named["name"], named["revision"])


def check_model(model: Path) -> None:
    """Look at a folder or a file before it is loaded: whether it is there, may be read and is a model. A hub id passes.

    Raises CheckpointError, or UnsupportedModelError for a kind of model that no path runs.
    """
    if not _is_there(model):
        if hub_id(model) is None:
            raise CheckpointError(f"no such model: {model}")
    elif model.is_dir():
        config = read_config_json(model)
        refuse_unsupported(config)
        architecture_of(config)
        for file in weight_files(model):
            _first_bytes(file, 1)
    else:
        check_gguf(model)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises CheckpointError when there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"cannot read {path}: it holds no JSON object")
    return value


def read_config_json(folder: Path) -> dict[str, Any]:
    """Contents of the folder's config.json. Raises CheckpointError when there is none."""
    if _is_there(folder / CONFIG_NAME):
        return read_json(folder / CONFIG_NAME)
    if not _listed(folder):
        raise CheckpointError(f"no {CONFIG_NAME} in {folder}: the folder is empty")
    ggufs = sorted(folder.glob("*.gguf"))
    hint = f"; give the file itself to load {ggufs[0].name}" if ggufs else ""
    raise CheckpointError(f"no {CONFIG_NAME} in {folder}{hint}")


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, one or those of an index. Raises CheckpointError when one is missing."""
    if _is_there(folder / INDEX_NAME):
        weight_map = read_json(folder / INDEX_NAME).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{folder / INDEX_NAME} has no weight_map")
        files = [folder / name for name in sorted(set(map(str, weight_map.values())))]
        if missing := [file.name for file in files if not _is_there(file)]:
            raise CheckpointError(f"{INDEX_NAME} names files that are not in {folder}: {some(missing)}")
        return files
    if _is_there(folder / SINGLE_NAME):
        return [folder / SINGLE_NAME]
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    hint = f"; {', '.join(pickled)} is a pickle, which is not read" if pickled else ""
    raise CheckpointError(f"no weights in {folder}: neither {SINGLE_NAME} nor {INDEX_NAME}{hint}")


def check_gguf(path: Path) -> None:
    """Raises CheckpointError for what does not begin as a GGUF file."""
    # Opening a pipe would wait for a writer.
    if not path.is_file() or _first_bytes(path, len(GGUF_MAGIC)) != GGUF_MAGIC:
        raise CheckpointError(f"{path} is neither a model folder nor a GGUF file")


def some(names: list[str]) -> str:
    """The first five of the names, and how many more there are."""
    shown = ", ".join(sorted(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _is_there(path: Path) -> bool:
    """Raises CheckpointError when that cannot be told, and for a link to nothing: a folder of the hub's cache is made
    of links, and lacks all of its files where it was mounted or copied alone."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link to {path.readlink()}, which is not there") from None
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return True


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise _unreadable(folder, error) from error


def _first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError):
        reason += f"; it must be readable by uid {os.geteuid()}, which the worker runs as"
    return CheckpointError(f"cannot read {path}: {reason}")
