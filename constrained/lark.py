"""Grammars in Lark's notation as rules over bytes."""

from __future__ import annotations

import difflib

from .code_points import utf8
from .ebnf import check_productive
from .ebnf_parser import Definition
from .errors import GrammarError
from .grammar import Grammar
from .lark_parser import IGNORED, parse_lark
from .lark_terminals import Terminals
from .left_recursion import without_left_recursion
from .limits import CompileLimits, Deadline
from .regex import CharRules
from .rules import Node, RuleRef, Rules, Sequence, is_nullable_leaf, rules_that_hold
from .wire_source import read_members

_START = "lark/start"


def lower_lark(source: str, limits: CompileLimits, deadline: Deadline) -> Rules:
    """Rules of the texts of a Lark grammar; `source` is that of `Grammar.lark`. Left recursion is rewritten.

    Raises:
        UnsatisfiableGrammarError: a rule matches no text.
        GrammarError: see `parse_lark`; also no rule that is called like the start, or a terminal that may be empty.
        GrammarLimitError: too large, or out of time.
    """
    limits.check("source_chars", len(source), "characters of the Lark grammar")
    spec = read_members(source, "a Lark grammar", "lark", "start")
    Grammar.lark(spec["lark"], start=spec["start"])  # what came over a wire has not been built there
    rules: dict[str, Node] = {}
    terminals = Terminals(rules, CharRules(rules, "lark/utf8", utf8, deadline), limits, deadline)
    defined = parse_lark(spec["lark"], terminals, limits)
    _check_start(spec["start"], defined)
    rules.update((name, definition.node) for name, definition in defined.items())
    rules[_START] = Sequence((RuleRef(IGNORED), RuleRef(spec["start"])))
    limits.check("rules", len(rules), "rules of the Lark grammar")
    check_productive(defined, rules)
    _check_terminals(defined, rules)
    return without_left_recursion(Rules(_START, rules), limits)


def _check_start(start: str, defined: dict[str, Definition]) -> None:
    names = [name for name in defined if name.islower() and name != IGNORED]
    if not names:
        raise GrammarError("the Lark grammar has no rules; it needs at least 'start: ...'")
    if start not in names:
        close = difflib.get_close_matches(start, names, 1)
        hint = f"did you mean start={close[0]!r}?" if close else f"its rules are: {', '.join(names)}"
        raise GrammarError(f"the Lark grammar has no rule {start!r}, where its texts would start; {hint}")


def _check_terminals(defined: dict[str, Definition], rules: dict[str, Node]) -> None:
    nullable = rules_that_hold(rules, is_nullable_leaf)
    for name, definition in defined.items():
        if name.isupper() and name in nullable:
            raise GrammarError(f"the terminal {name} may be empty, which no terminal may", pointer=definition.place)
