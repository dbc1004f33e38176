"""Models by their id on the Hugging Face hub."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from model_worker.model.checkpoint import read_json
from model_worker.model.errors import CheckpointError
from model_worker.model.registry import is_native

_CONFIG = ["config.json"]
_NEEDED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_ELSEWHERE = ["*/*"]
"""Folders of a repository hold the same weights in other formats."""


def fetch(name: str, revision: str | None = None, endpoint: str | None = None, cache: Path | None = None) -> Path:
    """The snapshot of a model of the hub, downloaded once; without a network the one in the cache serves.

    Raises CheckpointError when there is none, UnsupportedModelError, before any weights are fetched, when its
    configuration is not supported.

    endpoint, cache  where the hub is and where snapshots lie, by default what huggingface_hub takes from its
                     environment (HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN, HF_HUB_OFFLINE)
    """
    folder = _snapshot(name, revision, endpoint, cache, _CONFIG)
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{name} on the hub has no config.json: it is no model of transformers")
    is_native(read_json(folder / "config.json"))
    return _snapshot(name, revision, endpoint, cache, _NEEDED)


def _snapshot(name: str, revision: str | None, endpoint: str | None, cache: Path | None, patterns: list[str]) -> Path:
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            endpoint=endpoint,
            cache_dir=cache,
            allow_patterns=patterns,
            ignore_patterns=_ELSEWHERE,
        )
    except GatedRepoError as error:
        raise CheckpointError(f"{name} is gated on the hub: accept its terms there and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{name} on the hub has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"no such model: {name} is no file or folder here, and the hub has none") from error
    except Exception as error:  # without a network, whatever the HTTP library of this huggingface_hub raises
        raise CheckpointError(
            f"no such model: {name} is no file or folder here nor in the hub's cache, and the hub cannot be reached "
            f"({type(error).__name__})"
        ) from error
    return Path(folder)
