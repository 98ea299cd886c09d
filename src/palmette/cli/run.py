"""`palmette run`: a program from a file."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import palmette as pt

from .arguments import check_arguments, parse_arguments
from .engine import GrammarBackendOption, ModelOption, RevisionOption, as_default, running_engine
from .errors import DebugOption, RunError, reports_errors
from .outcome import Outcome, json_object, json_text, outcome_of
from .program_file import load_function, place_and_reason


@reports_errors
def run(
    target: Annotated[str, typer.Argument(metavar="FILE[:FUNCTION]", help="A Python file, and which function of it.")],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            "-a",
            metavar="NAME=VALUE",
            help="An argument: JSON where it is JSON, else text. Options as temperature=0 too.",
        ),
    ] = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    grammar_backend: GrammarBackendOption = None,
    tree: Annotated[bool, typer.Option("--tree/--no-tree", help="Show what each node computed and reused.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: the variables and the return value.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Run a program's function and print its variables and what it returned. The tree goes to standard error."""
    function = load_function(target)
    arguments = parse_arguments(arg or [])
    check_arguments(function, arguments)
    with running_engine(model, revision, grammar_backend) as engine, as_default(engine):
        state = _run(function, arguments)
        outcome = outcome_of(state)
        _print_json(outcome) if as_json else _print_text(outcome)
        if tree:
            _print_tree(state.tree)
        if outcome.error is not None:
            raise RunError(str(outcome.error)) from outcome.error


def _run(function: pt.Function, arguments: dict[str, Any]) -> pt.ProgramState:
    """Run the program in this thread, so that Ctrl-C and a debugger reach it.

    Raises:
        RunError: the function raised; names the line of its file.
    """
    try:
        return function.run(**arguments)
    except Exception as error:
        file = Path(inspect.getfile(inspect.unwrap(function)))
        raise RunError(f"{function.__name__} of {file.name} failed at {place_and_reason(error, file)}") from error


def _print_text(outcome: Outcome) -> None:
    for name, value in outcome.values.items():
        typer.echo(f"{name}: {_shown(value)}")
    if outcome.returned is not None:
        typer.echo(f"returned: {_shown(outcome.returned)}")


def _print_json(outcome: Outcome) -> None:
    typer.echo(f'{{"variables": {json_object(outcome.values)}, "returned": {json_text(outcome.returned)}}}')


def _print_tree(tree: pt.TreeView) -> None:
    """As wide as the terminal, in colours; plain text where there is none."""
    if not sys.stderr.isatty():
        typer.echo(f"\n{tree}", err=True)
        return
    from rich.console import Console

    console = Console(stderr=True)
    console.print()
    console.print(tree)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
