"""The commands, put together."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from .batch import batch
from .bench import bench
from .env import env
from .generate import generate
from .grammar import grammar
from .models import models
from .run import run
from .serve import serve
from .serve_options import ServeCommand

app = typer.Typer(
    name="palmette",
    help="Programs of language-model calls, and a runtime that computes each shared prefix once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(batch)
app.command()(generate)
app.command(cls=ServeCommand)(serve)
app.add_typer(grammar, name="grammar")
app.add_typer(models, name="models")
app.add_typer(bench, name="bench")
app.command()(env)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"palmette {version('palmette')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """Options of `palmette` itself."""
