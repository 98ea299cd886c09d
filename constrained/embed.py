"""Grammars inside grammars."""

from __future__ import annotations

from .limits import CompileLimits
from .rules import ALL_BYTES, Node, RuleRef, Rules, children, postorder
from .simplify import remake, simplify


def embed(inner: Rules, prefix: str, rules: dict[str, Node], limits: CompileLimits) -> RuleRef:
    """Add the rules of `inner` to `rules`, under names that begin with `prefix`, and return the one it starts with.

    Raises:
        UnsatisfiableGrammarError: nothing matches `inner`.
        GrammarLimitError: it is too large.
    """
    simple = simplify(inner, ALL_BYTES, limits)
    for name, node in simple.rules.items():
        rules[prefix + name] = _prefixed(node, prefix)
    return RuleRef(prefix + simple.start)


def _prefixed(root: Node, prefix: str) -> Node:
    new: dict[int, Node] = {}
    for node in postorder(root):
        parts = [new[id(part)] for part in children(node)]
        new[id(node)] = RuleRef(prefix + node.name) if isinstance(node, RuleRef) else remake(node, parts)
    return new[id(root)]
