"""A place in the text of a grammar, for the parsers of EBNF and Lark."""

from __future__ import annotations

import re
from bisect import bisect_right


class SourceReader:
    """Reads a text from left to right, and names its places by line and column."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", source))]
        self._at = 0

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        found = self._source.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _place(self, offset: int) -> str:
        line = bisect_right(self._line_starts, offset)
        return f"line {line}, column {offset - self._line_starts[line - 1] + 1}"

    def _found(self, offset: int) -> str:
        return repr(self._source[offset]) if offset < len(self._source) else "the end of the grammar"
