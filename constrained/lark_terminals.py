"""What the terminals of Lark grammars are made of: regular expressions, strings, and those of its library "common"."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .code_points import CodePoints
from .embed import embed
from .errors import UnsupportedGrammarError
from .limits import CompileLimits, Deadline
from .regex import CharRules, lower_regex
from .regex_parser import parse_regex
from .regex_tree import Anchor, inside
from .rules import Node

_FLOAT = r"[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+\.[0-9]*"
COMMON_TERMINALS: Mapping[str, str] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?(?:{_FLOAT})",
    "NUMBER": f"{_FLOAT}|[0-9]+",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|[0-9]+)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][0-9A-Za-z_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""The terminals of ``%import common.NAME``, as regular expressions of the same texts."""

_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "b": "\b", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPE = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)


def unescaped(text: str) -> str:
    """What is between the quotes of a string, read as Python does.

    Raises:
        ValueError: an escape that is none, or no character.
    """
    plain = _ESCAPE.sub(_escaped_char, text)
    if any("\ud800" <= char <= "\udfff" for char in plain):
        raise ValueError("a surrogate without its other half is no character")
    return plain


def _escaped_char(found: re.Match[str]) -> str:
    letter, digits = found[0][1], found[0][2:]
    if letter in _HEX and digits and int(digits, 16) <= 0x10FFFF:
        return chr(int(digits, 16))
    if letter in _CONTROL:
        return _CONTROL[letter]
    if letter.isalnum():
        raise ValueError(f"unknown escape {found[0]} in a string; a backslash itself is \\\\")
    return letter


class Terminals:
    """Makes rules for the terminals of one grammar."""

    def __init__(self, rules: dict[str, Node], chars: CharRules, limits: CompileLimits, deadline: Deadline) -> None:
        """New rules go into `rules`, under names that begin with ``lark/``; those of sets of characters by `chars`."""
        self._rules = rules
        self._chars = chars
        self._limits = limits
        self._deadline = deadline
        self._known: dict[str, Node] = {}

    def chars(self, members: CodePoints) -> Node:
        """One character of a set."""
        return self._chars.node(members)

    def common(self, name: str) -> Node:
        """The terminal `name` of `COMMON_TERMINALS`."""
        return self._regular(COMMON_TERMINALS[name])

    def without_case(self, text: str) -> Node:
        """`text` in upper, lower or mixed case."""
        return self._regular(f"(?i:{re.escape(text)})")

    def regexp(self, pattern: str, flags: str) -> Node:
        """What a regular expression of Python's ``re`` matches in full.

        Raises:
            UnsupportedGrammarError: an anchor, or what `lower_regex` refuses.
            GrammarError: see `lower_regex`.
        """
        return self._regular(f"(?{flags}:{pattern})" if flags else pattern)

    def _regular(self, pattern: str) -> Node:
        if pattern not in self._known:
            _refuse_anchors(pattern, self._limits)
            grammar = lower_regex(pattern, self._limits, self._deadline)
            self._known[pattern] = embed(grammar, f"lark/{len(self._known)}/", self._rules, self._limits)
        return self._known[pattern]


def _refuse_anchors(pattern: str, limits: CompileLimits) -> None:
    todo = [parse_regex(pattern, "python", limits)]
    while todo:
        part = todo.pop()
        if isinstance(part, Anchor):
            raise UnsupportedGrammarError(f"the regular expression {pattern!r} of a terminal has an anchor")
        todo.extend(inside(part))
