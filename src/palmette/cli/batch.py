"""`palmette batch`: a program from a file, once for every line of another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .arguments import parse_arguments
from .batch_job import BatchJob
from .engine import GrammarBackendOption, ModelOption, RevisionOption, as_default, running_engine
from .errors import EXIT_FAILED, DebugOption, UsageError, note, reports_errors
from .items import STANDARD_INPUT, check_items, read_items
from .program_file import load_function
from .results import Results, opened_results


@reports_errors
def batch(
    target: Annotated[str, typer.Argument(metavar="FILE[:FUNCTION]", help="A Python file, and which function of it.")],
    items: Annotated[
        str, typer.Argument(metavar="ITEMS.jsonl", help="One JSON object of arguments a line; - reads standard input.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here.", show_default="standard output")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg", "-a", metavar="NAME=VALUE", help="For every item: an argument, or an option as temperature=0."
        ),
    ] = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    grammar_backend: GrammarBackendOption = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most programs at once.", show_default="one for each item, up to 128")
    ] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Seconds that one item may take.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Write each program's whole text as well.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the output: run what it lacks, and what failed.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Run a program for every line of a file and write a line of JSON for each, in order.

    An item that fails stays in the output with its error.
    Exit code 0: all went well. 1: an item failed. 2: a line or an option cannot be used; nothing was run.
    Lines of standard input are checked as they come: one that cannot be used is an item that failed.
    """
    if resume and output is None:
        raise UsageError("--resume goes with --output, the file to go on with")
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"--timeout-s must be above 0, not {timeout_s:g}")
    job = BatchJob(load_function(target), parse_arguments(arg or []), text)
    with opened_results(output, resume) as results:
        total = None if items == STANDARD_INPUT else check_items(items, job.fault_in, results.holds)
        wanted = (item for item in read_items(items, job.fault_in) if not results.holds(item))
        with running_engine(model, revision, grammar_backend) as engine, as_default(engine):
            lines = job.run(wanted, num_threads=concurrency or "auto", timeout_s=timeout_s)
            failed = _write(lines, results, total)
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _write(lines: Generator[tuple[str, bool], None, None], results: Results, total: int | None) -> int:
    """Write the lines as they come; returns how many were of failed items."""
    started, count, failures = time.monotonic(), 0, 0
    with closing(lines), progress(total, len(results.done)) as show:
        for line, failed in lines:
            results.write(line)
            count += 1
            failures += failed
            show(failures)
    before = f", {len(results.done)} were there" if results.done else ""
    note(f"{count} items in {time.monotonic() - started:.1f} s, {failures} failed{before}")
    return failures


@contextmanager
def progress(total: int | None, done: int) -> Iterator[Callable[[int], None]]:
    """A function to call after each item with the failures so far; it moves a bar on a terminal's standard error."""
    if not sys.stderr.isatty():
        yield lambda failures: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=done)

        def show(failures: int) -> None:
            bar.update(task, advance=1, description=f"{failures} failed" if failures else "")

        yield show
