"""`palmette batch`: a program from a file, once for every line of another."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from palmette.lang.batch_progress import BatchCounts, shown_progress

from .arguments import parse_arguments
from .batch_job import BatchJob, Ended
from .engine import GrammarBackendOption, ModelOption, RevisionOption, as_default, running_engine
from .errors import EXIT_FAILED, DebugOption, UsageError, note, reports_errors
from .items import STANDARD_INPUT, Item, check_items, read_items
from .program_file import load_function
from .results import Results, StandardOutput, opened_results


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
    """Run a program for every line of a file and write a line of JSON for each.

    Standard output has them in order; a file has each as soon as it is done, and at the end has them in order.
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
        total = None if items == STANDARD_INPUT else check_items(items, job.fault_in, lambda item: _held(results, item))
        done = results.count_done(total)
        if done and done == total:
            note(f"nothing is left to do: {output} has the results of all {total} items")
            return
        wanted = (item for item in read_items(items, job.fault_in) if not _held(results, item))
        with running_engine(model, revision, grammar_backend) as engine, as_default(engine):
            ended = job.run(
                wanted,
                None if total is None else total - done,
                num_threads=concurrency or "auto",
                timeout_s=timeout_s,
                as_finished=not isinstance(results, StandardOutput),
            )
            counts = BatchCounts(total, done)
            try:
                _write(ended, results, counts)
            except KeyboardInterrupt:
                if not isinstance(results, StandardOutput):
                    note(f"{counts.before + counts.done} items are done; --resume goes on with {output}")
                raise
    if counts.failed:
        raise typer.Exit(EXIT_FAILED)


def _held(results: Results, item: Item) -> bool:
    return results.holds(item.index, item.arguments)


def _write(items: Generator[Ended, None, None], results: Results, counts: BatchCounts) -> None:
    """Write the line of each item that has ended, and show how far the batch is."""
    with closing(items), shown_progress(counts, "") as show:
        for item in items:
            results.write(item.place, item.line)
            if item.state is None:
                counts.add_failed()
            else:
                counts.add(item.state, failed=item.failed)
            show()
