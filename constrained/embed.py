"""Grammars inside grammars."""

from __future__ import annotations

from .limits import CompileLimits
from .rules import ALL_BYTES, Choice, Node, Repeat, RuleRef, Rules, Sequence, postorder
from .simplify import simplify


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
        match node:
            case RuleRef(name):
                new[id(node)] = RuleRef(prefix + name)
            case Sequence(parts):
                new[id(node)] = Sequence(tuple(new[id(part)] for part in parts))
            case Choice(options):
                new[id(node)] = Choice(tuple(new[id(option)] for option in options))
            case Repeat(body, least, most):
                new[id(node)] = Repeat(new[id(body)], least, most)
            case _:
                new[id(node)] = node
    return new[id(root)]
