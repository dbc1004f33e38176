"""Models by their id on the Hugging Face hub."""

from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.constants import DEFAULT_REVISION
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from model_worker.model.errors import CheckpointError
from model_worker.model.files import read_json
from model_worker.model.registry import is_native

# A hub that is there answers in tenths of a second. huggingface_hub itself waits for ever for some of its answers, and
# for minutes, with all its tries, for others.
ANSWER_SECONDS = 5.0

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
    download = _Download(name, revision, endpoint, cache, cached_only=not _answers(name, revision, endpoint))
    folder = download.snapshot(_CONFIG)
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{name} on the hub has no config.json: it is no model of transformers")
    is_native(read_json(folder / "config.json"))
    return download.snapshot(_NEEDED)


def _answers(name: str, revision: str | None, endpoint: str | None) -> bool:
    """Whether the hub can be reached at all: one short call. What it says of the model, downloads will hear too."""
    try:
        HfApi(endpoint=endpoint).repo_info(name, revision=revision or DEFAULT_REVISION, timeout=ANSWER_SECONDS)
    except HfHubHTTPError:
        return True
    except Exception:  # without a network, whatever the HTTP library of this huggingface_hub raises
        return False
    return True


class _Download(NamedTuple):
    """A model of the hub; ``cached_only`` where the hub cannot be asked."""

    name: str
    revision: str | None
    endpoint: str | None
    cache: Path | None
    cached_only: bool

    def snapshot(self, patterns: list[str]) -> Path:
        """The folder with all files that match."""
        name = self.name
        try:
            folder = snapshot_download(
                name,
                revision=self.revision,
                endpoint=self.endpoint,
                cache_dir=self.cache,
                local_files_only=self.cached_only,
                allow_patterns=patterns,
                ignore_patterns=_ELSEWHERE,
            )
        except GatedRepoError as error:
            raise CheckpointError(f"{name} is gated on the hub: accept its terms there and set HF_TOKEN") from error
        except RevisionNotFoundError as error:
            raise CheckpointError(f"{name} on the hub has no revision {self.revision}") from error
        except RepositoryNotFoundError as error:
            raise CheckpointError(f"no such model: {name} is no file or folder here, and the hub has none") from error
        except Exception as error:  # as above
            raise CheckpointError(
                f"no such model: {name} is no file or folder here nor in the hub's cache, and the hub cannot be "
                f"reached ({type(error).__name__})"
            ) from error
        return Path(folder)
