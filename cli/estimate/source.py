"""What the MODEL argument means: a folder or config.json, a built-in shape, or a hub id. In this order."""

import re
from pathlib import Path

from cli.estimate.built_in import SHAPES, built_in, like
from cli.estimate.config_file import Given, read_config_file, shape_of
from cli.estimate.shape import ModelShape
from cli.failures import CliError

_HUB_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")


def find_shape(model: str, given: Given) -> ModelShape:
    """The shape of ``model``, flags winning over what it says.

    Raises:
        CliError: there is no such model, or its configuration lacks something.
    """
    place = Path(model)
    if place.is_dir():
        if not (place / "config.json").is_file():
            raise CliError(f"{model} has no config.json: it is no model folder")
        return read_config_file(place / "config.json", place.resolve().name, given)
    if place.is_file():
        return _of_gguf(place, given) if place.suffix == ".gguf" else read_config_file(place, place.name, given)
    if (shape := built_in(model)) is not None:
        if given.any:
            raise CliError(f"{shape.name} is a built-in shape and takes no sizes; leave MODEL out for plain numbers")
        return shape
    if (named := _HUB_ID.fullmatch(model)) is not None:
        return read_config_file(config_from_hub(named["name"], named["revision"]), named["name"], given)
    raise CliError(f"no model folder and no built-in shape is called {model}: {_known(model)}")


def _known(model: str) -> str:
    names = like(model)
    return f"did you mean {' or '.join(names)}?" if names else f"there is {', '.join(SHAPES)}"


def config_from_hub(
    name: str, revision: str | None = None, endpoint: str | None = None, cache: Path | None = None
) -> Path:
    """The config.json of a hub id, alone; without a network the one in the cache serves.

    Args:
        endpoint: where the hub is, by default what huggingface_hub takes from its environment.
        cache: where files of the hub lie, likewise.

    Raises:
        CliError: there is none, or the hub cannot be reached.
    """
    near = "".join(f"; the built-in {found} needs no network" for found in like(name)[:1])
    try:
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_download, hf_hub_url, try_to_load_from_cache
    except ModuleNotFoundError as error:
        raise CliError(f"a hub id needs huggingface_hub: pip install huggingface-hub ({error}){near}") from error
    try:
        # Asked once first: a download tries for minutes to reach a hub that is not there.
        url = hf_hub_url(name, "config.json", revision=revision, endpoint=endpoint)
        get_hf_file_metadata(url, token=get_token(), endpoint=endpoint)
        return Path(hf_hub_download(name, "config.json", revision=revision, endpoint=endpoint, cache_dir=cache))
    except Exception as error:  # without a network, whatever the HTTP library of this huggingface_hub raises
        cached = try_to_load_from_cache(name, "config.json", revision=revision, cache_dir=cache)
        if isinstance(cached, str):
            return Path(cached)
        raise CliError(
            f"{name} is no folder here, and its config.json cannot be had from the hub: {type(error).__name__}{near}"
        ) from error


def _of_gguf(path: Path, given: Given) -> ModelShape:
    """By the worker's own reader of GGUF files."""
    try:
        from model_worker.model import ModelLoadError
        from model_worker.model.loader import open_checkpoint
    except ModuleNotFoundError as error:
        raise CliError(f"a GGUF file is read by the worker: pip install 'octavo[worker]' ({error})") from error
    try:
        with open_checkpoint(path) as checkpoint:
            return shape_of(checkpoint.config(), path.name, given, str(path))
    except ModelLoadError as error:
        raise CliError(str(error)) from error
