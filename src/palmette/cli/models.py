"""`palmette models`: the models that Palmette keeps in its cache."""

from __future__ import annotations

from typing import Annotated

import typer

from palmette.runtime.errors import ModelLoadError

from .engine import RevisionOption
from .errors import DebugOption, UsageError, note, reports_errors

MEGABYTE = 1_000_000

models = typer.Typer(help="Fetch, list, find and remove the models in the cache.", no_args_is_help=True)

OptionalName = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="The built-in model, or a Hugging Face id.", show_default="the built-in model"
    ),
]


@models.command()
@reports_errors
def pull(name: OptionalName = None, revision: RevisionOption = None, debug: DebugOption = False) -> None:
    """Fetch a model and print its folder. One that is there whole is left alone, a damaged one replaced.

    A Hugging Face id goes into that library's own cache (HF_HOME).
    """
    from palmette.runtime.default_model import pull_model
    from palmette.runtime.hub import fetch

    from .download import DownloadBar

    model_id = _hub_id(name, revision)
    with DownloadBar() as bar:
        folder = fetch(model_id, revision=revision, progress=bar) if model_id else pull_model(name, bar)
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
def path(name: OptionalName = None, revision: RevisionOption = None, debug: DebugOption = False) -> None:
    """Print a model's folder, for scripts. Nothing is fetched."""
    from palmette.runtime.default_model import DEFAULT_MODEL, is_default_model, model_path
    from palmette.runtime.hub import fetch

    model_id = _hub_id(name, revision)
    try:
        if model_id is not None:
            typer.echo(fetch(model_id, revision=revision, offline=True))
        else:
            typer.echo(model_path(DEFAULT_MODEL if name is None or is_default_model(name) else name))
    except ModelLoadError as error:
        raise UsageError(str(error), hint="`palmette models pull` fetches models") from error


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


def _hub_id(name: str | None, revision: str | None) -> str | None:
    """The name where it is a Hugging Face id, and not that of the built-in model.

    Raises:
        UsageError: a revision of something else is asked for.
    """
    from palmette.runtime.default_model import is_default_model
    from palmette.runtime.hub import is_hub_id

    if name is not None and is_hub_id(name) and not is_default_model(name, revision):
        return name
    if revision is not None:
        raise UsageError("--revision goes with a Hugging Face id", hint="palmette models pull ORGANISATION/MODEL")
    return None
