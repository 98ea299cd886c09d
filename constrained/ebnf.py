"""EBNF grammars as rules over bytes."""

from __future__ import annotations

import difflib

from .code_points import utf8
from .ebnf_parser import Definition, parse_ebnf
from .errors import GrammarError, UnsatisfiableGrammarError
from .grammar import Grammar
from .left_recursion import without_left_recursion
from .limits import CompileLimits, Deadline
from .regex import CharRules
from .rules import Node, Rules, is_productive_leaf, rules_that_hold
from .wire_source import read_members


def lower_ebnf(source: str, limits: CompileLimits, deadline: Deadline) -> Rules:
    """Rules of the texts of an EBNF grammar; `source` is that of `Grammar.ebnf`. Left recursion is rewritten.

    Raises:
        UnsatisfiableGrammarError: a rule matches no text.
        GrammarError: see `parse_ebnf`; also no rule that is called like the root.
        GrammarLimitError: too large, or out of time.
    """
    limits.check("source_chars", len(source), "characters of the EBNF grammar")
    spec = read_members(source, "an EBNF grammar", "ebnf", "root")
    Grammar.ebnf(spec["ebnf"], root=spec["root"])  # what came over a wire has not been built there
    rules: dict[str, Node] = {}
    defined = parse_ebnf(spec["ebnf"], CharRules(rules, "utf8", utf8, deadline), limits)
    _check_root(spec["root"], defined)
    rules.update((name, definition.node) for name, definition in defined.items())
    limits.check("rules", len(rules), "rules of the EBNF grammar")
    check_productive(defined, rules)
    return without_left_recursion(Rules(spec["root"], rules), limits)


def _check_root(root: str, defined: dict[str, Definition]) -> None:
    if not defined:
        raise GrammarError("the EBNF grammar has no rules; it needs at least 'root ::= ...'")
    if root not in defined:
        close = difflib.get_close_matches(root, defined, 1)
        hint = f"did you mean root={close[0]!r}?" if close else f"its rules are: {', '.join(defined)}"
        raise GrammarError(f"the EBNF grammar has no rule {root!r}, where its texts would start; {hint}")


def check_productive(defined: dict[str, Definition], rules: dict[str, Node]) -> None:
    """Raise `UnsatisfiableGrammarError`, with its place, where one of the rules `defined` among `rules` has no text."""
    alive = rules_that_hold(rules, is_productive_leaf)
    for name, definition in defined.items():
        if name not in alive:
            raise UnsatisfiableGrammarError(
                f"the rule {name!r} matches no text, because each of its alternatives needs a rule that never ends",
                pointer=definition.place,
            )
