"""`palmette run`: a program from a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import palmette as pt
from palmette.lang.outcome import Outcome, json_object, json_text, outcome_of
from palmette.lang.run import Run
from palmette.lang.trace_run import traced_run

from .arguments import check_arguments, parse_arguments
from .compiled import check_compiled_alone, show_compiled
from .engine import GrammarBackendOption, ModelOption, RevisionOption, as_default, running_engine
from .errors import EXIT_FAILED, DebugOption, RunError, UsageError, note, reports_errors
from .program_file import failure_in, load_function


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
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="OUT",
            help="Write how it ran: OUT.html for a browser, OUT.json for chrome://tracing and ui.perfetto.dev.",
        ),
    ] = None,
    compile_only: Annotated[
        bool,
        typer.Option("--compile", help="Run nothing: print the tree that is built up to the first value that is read."),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Run a program's function and print its variables and what it returned. The tree goes to standard error."""
    function = load_function(target)
    arguments = parse_arguments(arg or [])
    check_arguments(function, arguments)
    if compile_only:
        check_compiled_alone({"--json": as_json, "--trace": trace is not None})
        show_compiled(function, arguments, model, revision)
        return
    traces = () if trace is None else _trace_files(trace)
    saved = True
    with running_engine(model, revision, grammar_backend) as engine, as_default(engine):
        traced = traced_run(function, arguments) if traces else None
        try:
            state = _run(function, arguments, traced)
            outcome = outcome_of(state)
            _print_json(outcome) if as_json else _print_text(outcome)
            if tree:
                _print_tree(state.tree)
            if outcome.error is not None:
                raise RunError(str(outcome.error)) from outcome.error
        finally:
            if traced is not None:
                saved = _saved(traced.state.trace(), traces)
    if not saved:
        raise typer.Exit(EXIT_FAILED)


def _run(function: pt.Function, arguments: dict[str, Any], traced: Run | None) -> pt.ProgramState:
    """Run the program in this thread, so that Ctrl-C and a debugger reach it.

    Raises:
        RunError: the function raised; names the line of its file.
    """
    try:
        return function.run(**arguments) if traced is None else traced.run()
    except Exception as error:
        raise failure_in(function, error) from error


def _trace_files(out: Path) -> tuple[Path, Path]:
    """OUT.html and OUT.json, whether OUT names one of them or neither.

    Raises:
        UsageError: they cannot be written there.
    """
    stem = out.with_suffix("") if out.suffix in (".html", ".json") else out
    if not stem.name or not stem.parent.is_dir():
        raise UsageError(f"--trace {out}: {stem.parent} is not a folder", hint="make it, or name another place")
    files = stem.with_name(f"{stem.name}.html"), stem.with_name(f"{stem.name}.json")
    for file in files:
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            raise UsageError(f"--trace {out}: {file} cannot be written", hint="name another place")
    return files


def _saved(trace: pt.RunTrace, files: Sequence[Path]) -> bool:
    """Whether the trace could be written; else the reason is told, and no error of the run is hidden by it."""
    try:
        for file in files:
            note(f"trace written to {trace.save(file)}")
    except OSError as error:
        note(f"the trace cannot be written: {error}")
        return False
    return True


def _print_text(outcome: Outcome) -> None:
    for name, value in outcome.values.items():
        typer.echo(f"{name}: {_shown(value)}")
    if outcome.returned is not None:
        typer.echo(f"returned: {_shown(outcome.returned)}")


def _print_json(outcome: Outcome) -> None:
    typer.echo(f'{{"variables": {json_object(outcome.values)}, "returned": {json_text(outcome.returned)}}}')


def _print_tree(tree: pt.TreeView) -> None:
    """As wide as the terminal, in colours; plain text where there is none."""
    typer.echo(err=True)
    tree.show(sys.stderr)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
