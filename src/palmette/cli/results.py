"""Where the lines of a batch go: standard output in the items' order, or a file as items end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import typer

from palmette.lang.batch_results import ResultsFile
from palmette.lang.errors import ResultsFileError

from .errors import UsageError


class Results(Protocol):
    """Takes the lines of a batch; a `ResultsFile` is one."""

    def count_done(self, total: int | None) -> int:
        """How many of the first `total` items, or of all, were there before without an error."""

    def holds(self, place: int, arguments: object) -> bool:
        """Whether this item's result was there before."""

    def write(self, place: int, line: str) -> None:
        """Write the line of an item."""


class StandardOutput:
    """Lines that nobody reads again: on standard output, or on a pipe or device."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def count_done(self, total: int | None) -> int:
        """Nothing was there before."""
        return 0

    def holds(self, place: int, arguments: object) -> bool:
        """Nothing was there before."""
        return False

    def write(self, place: int, line: str) -> None:
        """Write a line in one piece."""
        self._stream.write(line.encode("utf-8", "backslashreplace") + b"\n")
        self._stream.flush()


@contextmanager
def opened_results(output: Path | None, resume: bool) -> Iterator[Results]:
    """Results on standard output, or in a new file; with `resume` in one that a batch has begun.

    Raises:
        UsageError: the file has something in it already, cannot be used, or holds other items.
    """
    if output is None:
        yield StandardOutput(typer.get_binary_stream("stdout"))
    elif _is_stream(output) and not resume:
        with output.open("wb") as stream:
            yield StandardOutput(stream)
    else:
        if not resume and output.exists() and output.stat().st_size:
            raise UsageError(f"{output} is not empty", hint="--resume goes on with it; or write to another file")
        with _as_usage_error(), ResultsFile(output, resume=resume) as results:
            yield results


def _is_stream(path: Path) -> bool:
    return path.is_fifo() or path.is_char_device() or path.is_socket()


@contextmanager
def _as_usage_error() -> Iterator[None]:
    try:
        yield
    except ResultsFileError as error:
        raise UsageError(str(error)) from error
