"""The line of a user's program that a node came from."""

from __future__ import annotations

import linecache
import re
import sys
from dataclasses import dataclass

_OURS = re.compile(r"palmette\.lang\.|contextlib$")  # role blocks reach us by way of contextlib


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A place in a source file: the path as Python knows it, the line from 1, and the function's name."""

    file: str
    line: int
    function: str

    @property
    def code(self) -> str:
        """The line's text without its indentation; "" where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def calling_line() -> SourceLine:
    """The innermost line on this thread's stack that is not in the language's own code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _OURS.match(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
