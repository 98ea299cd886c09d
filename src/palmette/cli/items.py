"""The items of a batch: a file of JSON objects, one a line, each the arguments of one run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .errors import UsageError

STANDARD_INPUT = "-"

FaultOf = Callable[[dict[str, Any]], str | None]
"""What is wrong with the arguments of a run; None for nothing."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line that is not blank.

    Attributes:
        index: its place among the items, from 0.
        arguments: the object; None where the line holds none.
        fault: why it cannot be run, with file and line number.
    """

    index: int
    arguments: dict[str, Any] | None
    fault: str | None = None


def read_items(source: str, fault_of: FaultOf) -> Iterator[Item]:
    """The items of a file, or of standard input where `source` is ``-``, one after another as they are asked for.

    Raises:
        UsageError: the file cannot be read.
    """
    name = "standard input" if source == STANDARD_INPUT else source
    index = 0
    with _opened(source) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _item(index, line, f"{name} line {number}", fault_of)
                index += 1


def check_items(source: str, fault_of: FaultOf, also: Callable[[Item], object]) -> int:
    """The number of items in a file, each of which can be run, and passes the check `also`.

    Raises:
        UsageError: the file cannot be read, or a line of it cannot be run; the message has the first.
    """
    count, first, faults = 0, "", 0
    for item in read_items(source, fault_of):
        also(item)
        count += 1
        if item.fault is not None:
            first = first or item.fault
            faults += 1
    if faults:
        more = f"{faults} of {count} lines cannot be run; nothing was" if faults > 1 else "nothing was run"
        raise UsageError(first, hint=more)
    return count


def _opened(source: str) -> BinaryIO:
    if source == STANDARD_INPUT:
        return _standard_input()
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise UsageError(
            f"{source} cannot be read: {error.strerror}", hint="a file with one JSON object a line, or - for stdin"
        ) from error


def _standard_input() -> BinaryIO:
    """A reader of its own: Python cannot exit while a thread waits for a line of `sys.stdin`."""
    try:
        return open(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, ValueError):  # it is closed, or no file
        return sys.stdin.buffer


def _item(index: int, line: bytes, place: str, fault_of: FaultOf) -> Item:
    try:
        arguments = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Item(index, None, f"{place} is not JSON: {error}")
    if not isinstance(arguments, dict):
        return Item(index, None, f"{place} is no JSON object of arguments, but {line.decode().strip():.60}")
    fault = fault_of(arguments)
    return Item(index, arguments, fault and f"{place}: {fault}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
