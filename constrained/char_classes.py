r"""Named sets of characters of regular expressions (``\d``, ``\w``, ``\s``, ``.``), and equality without case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

from .code_points import CodePoints, Range

ASCII_DIGITS = CodePoints.of([(ord("0"), ord("9"))])
ASCII_WORD = CodePoints.of([(ord("0"), ord("9")), (ord("A"), ord("Z")), (ord("_"), ord("_")), (ord("a"), ord("z"))])
ASCII_SPACE = CodePoints.from_text(" \t\n\r\f\v")
# ECMA-262, WhiteSpace and LineTerminator
ECMA_SPACE = (
    ASCII_SPACE
    | CodePoints.from_text("\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff")
    | CodePoints.of([(0x2000, 0x200A)])
)
NEWLINE = CodePoints.from_text("\n")
ECMA_NEWLINE = CodePoints.from_text("\n\r\u2028\u2029")
SEES_NOTHING = sys.version_info >= (3, 14)
r"""Whether ``\B`` of this Python's `re` matches the empty text."""


@cache
def unicode_class(letter: str) -> CodePoints:
    r"""What ``\d``, ``\s`` or ``\w`` of Python's ``re`` matches in text; about 0.2 s at first use."""
    tests: dict[str, Callable[[str], bool]] = {"d": str.isdecimal, "s": str.isspace, "w": _is_word}
    return CodePoints.of(_ranges_where(tests[letter]))


def _is_word(char: str) -> bool:
    return char == "_" or char.isalnum()


def _ranges_where(test: Callable[[str], bool]) -> list[Range]:
    ranges: list[Range] = []
    start = None
    for code in range(sys.maxunicode + 2):
        holds = code <= sys.maxunicode and test(chr(code))
        if holds and start is None:
            start = code
        elif not holds and start is not None:
            ranges.append((start, code - 1))
            start = None
    return ranges


def fold(chars: CodePoints) -> CodePoints:
    """`chars` and every character that equals one of them when case is ignored, as Python's ``re`` has it."""
    extra: list[Range] = []
    for group in _case_groups():
        if any(code in chars for code in group):
            extra.extend((code, code) for code in group)
    return chars | CodePoints.of(extra)


@cache
def _case_groups() -> tuple[tuple[int, ...], ...]:
    """Characters joined by an equal lower case, or an equal upper case (such as s and U+017F)."""
    group_of: dict[str, set[int]] = {}
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        lower, upper = char.lower(), char.upper()
        if lower == upper == char:
            continue
        _join(group_of, {code}, "lower " + lower[:1], "upper " + upper)
    distinct = {id(group): group for group in group_of.values() if len(group) > 1}
    return tuple(tuple(sorted(group)) for group in distinct.values())


def _join(group_of: dict[str, set[int]], members: set[int], *keys: str) -> None:
    joined = members.union(*(group_of[key] for key in keys if key in group_of))
    for key in (*keys, *(key for code in joined for key in _keys(code))):
        group_of[key] = joined


def _keys(code: int) -> tuple[str, str]:
    char = chr(code)
    return "lower " + char.lower()[:1], "upper " + char.upper()
