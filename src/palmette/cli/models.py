"""`palmette models`: the models that Palmette keeps in its cache."""

from __future__ import annotations

from typing import Annotated

import typer

from palmette.runtime.errors import ModelLoadError

from .errors import DebugOption, UsageError, note, reports_errors

MEGABYTE = 1_000_000

models = typer.Typer(help="Fetch, list, find and remove the models in the cache.", no_args_is_help=True)

OptionalName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The model.", show_default="the built-in model")
]


@models.command()
@reports_errors
def pull(name: OptionalName = None, debug: DebugOption = False) -> None:
    """Fetch a model and print its folder. One that is there whole is left alone, a damaged one replaced."""
    from palmette.runtime.default_model import pull_model

    from .download import DownloadBar

    with DownloadBar() as bar:
        folder = pull_model(name, bar)
    typer.echo(folder)


@models.command("list")
@reports_errors
def list_all(debug: DebugOption = False) -> None:
    """Print each model's name, size and folder."""
    from palmette.runtime.default_model import list_models, models_folder

    cached = list_models()
    width = max((len(model.name) for model in cached), default=0)
    for model in cached:
        typer.echo(f"{model.name:<{width}}  {model.size_bytes / MEGABYTE:7.0f} MB  {model.path}")
    if not cached:
        note(f"no model in {models_folder()}; `palmette models pull` fetches the built-in one")


@models.command()
@reports_errors
def path(name: OptionalName = None, debug: DebugOption = False) -> None:
    """Print a model's folder, for scripts."""
    from palmette.runtime.default_model import DEFAULT_MODEL, model_path

    try:
        typer.echo(model_path(name or DEFAULT_MODEL))
    except ModelLoadError as error:
        raise UsageError(str(error), hint="`palmette models pull` fetches the built-in one") from error


@models.command()
@reports_errors
def remove(
    name: Annotated[str, typer.Argument(help="The model, as `palmette models list` names it.")],
    debug: DebugOption = False,
) -> None:
    """Delete a model from the cache."""
    from palmette.runtime.default_model import model_path, remove_model

    try:
        folder = model_path(name)
    except ModelLoadError as error:
        raise UsageError(str(error), hint="`palmette models list` shows their names") from error
    remove_model(name)
    note(f"removed {folder}")
