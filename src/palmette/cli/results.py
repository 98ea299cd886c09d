"""The results of a batch: a file of JSON objects, one a line, that a later run can go on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import typer

from .errors import UsageError
from .items import Item


class Results:
    """Writes one line an item, each in one piece, so that an interrupt leaves whole lines.

    Attributes:
        done: the arguments of the items that the file held already, by index.
    """

    def __init__(self, stream: BinaryIO, done: dict[int, Any]) -> None:
        self._stream = stream
        self.done = done

    def write(self, line: str) -> None:
        """Append a line of JSON. A half of a pair of UTF-16, which UTF-8 does not have, is written as JSON's escape."""
        self._stream.write(line.encode("utf-8", "backslashreplace") + b"\n")
        self._stream.flush()

    def holds(self, item: Item) -> bool:
        """Whether the file held this item's result already.

        Raises:
            UsageError: it held one of other arguments.
        """
        if item.index not in self.done:
            return False
        if self.done[item.index] != item.arguments:
            raise UsageError(
                f"item {item.index} was run with other arguments when the output was begun",
                hint="--resume goes with the same items; write to another file",
            )
        return True


@contextmanager
def opened_results(output: Path | None, resume: bool) -> Iterator[Results]:
    """Results on standard output, or in a new file; with `resume` in one that a batch has begun.

    Raises:
        UsageError: the file has something in it already, or cannot be written.
    """
    if output is None:
        yield Results(typer.get_binary_stream("stdout"), {})
        return
    try:
        done = _kept(output) if resume and output.exists() else {}
        if not resume and output.exists() and output.stat().st_size:
            raise UsageError(f"{output} is not empty", hint="--resume goes on with it; or write to another file")
        stream = output.open("ab")
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error
    with stream:
        yield Results(stream, done)


def _kept(output: Path) -> dict[int, Any]:
    """The items that a file holds without an error. The lines of others are taken out: those items run again.

    Raises:
        UsageError: the file is something else than a batch's output.
    """
    done: dict[int, Any] = {}
    fresh = output.with_name(f".{output.name}.resumed")
    try:
        with output.open("rb") as old, fresh.open("wb") as new:
            for number, line in enumerate(old, start=1):
                result = _result(line, f"{output} line {number}")
                if result and result["error"] is None:
                    done[result["index"]] = result["args"]
                    new.write(line)
        os.replace(fresh, output)
    finally:
        fresh.unlink(missing_ok=True)
    return done


def _result(line: bytes, place: str) -> dict[str, Any] | None:
    """The object of a line; None for a last line that is not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        result = json.loads(line)
    except ValueError:
        result = None
    if isinstance(result, dict) and {"index", "args", "error"} <= result.keys() and isinstance(result["index"], int):
        return result
    raise UsageError(f"{place} is no result of `palmette batch`", hint="--resume goes on with a batch's own output")
