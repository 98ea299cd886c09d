"""`palmette run`: a program from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import palmette as pt

from .arguments import check_arguments, parse_arguments
from .engine import ModelOption, running_engine
from .errors import DebugOption, reports_errors
from .program_file import load_function


@reports_errors
def run(
    target: Annotated[str, typer.Argument(metavar="FILE[:FUNCTION]", help="A Python file, and which function of it.")],
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", "-a", metavar="NAME=VALUE", help="An argument: JSON where it is JSON, else text."),
    ] = None,
    model: ModelOption = None,
    tree: Annotated[bool, typer.Option("--tree/--no-tree", help="Show what each node computed and reused.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the variables as one JSON object.")] = False,
    debug: DebugOption = False,
) -> None:
    """Run a program's function, and print its variables. The tree of what was computed goes to standard error."""
    function = load_function(target)
    arguments = parse_arguments(arg or [])
    check_arguments(function, arguments)
    with running_engine(model) as engine:
        pt.set_default_backend(engine)
        state = function.run(backend=engine, **arguments)
        _print_variables(state, as_json)
        if tree:
            typer.echo(str(state.tree), err=True)
