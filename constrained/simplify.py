"""Removes from `Rules` what can never match, so that every position of what is left can reach an end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Set

from .errors import UnsatisfiableGrammarError
from .limits import DEFAULT_LIMITS, CompileLimits, Growth
from .rules import (
    EMPTY,
    NOTHING,
    ByteClass,
    Choice,
    Except,
    Flagged,
    Graph,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    children,
    holds,
    is_nullable_leaf,
    is_productive_leaf,
    postorder,
    references,
    rules_that_hold,
)


def simplify(grammar: Rules, alphabet: int, limits: CompileLimits = DEFAULT_LIMITS) -> Rules:
    """An equal grammar without dead alternatives and without counted repetitions of the empty string.

    Args:
        grammar: may refer to rules that match nothing; must not refer to rules that do not exist.
        alphabet: bit b says whether byte b can be written at all; other bytes are taken out of every class.
        limits: its `positions` bound the nodes of the grammar and what is made anew.

    Raises:
        GrammarLimitError: they are more.
        UnsatisfiableGrammarError: nothing matches `grammar` (in that alphabet).
    """
    reachable = _reachable(grammar)
    growth = Growth(limits)
    growth.add(sum(len(postorder(node)) for node in reachable.values()))
    within = {name: _restrict(node, alphabet) for name, node in reachable.items()}
    alive = rules_that_hold(within, is_productive_leaf)
    if grammar.start not in alive:
        raise UnsatisfiableGrammarError("nothing matches this grammar", pointer=_culprit(within, alive))
    kept = _living(within, alive)
    rules = _without_empty_rounds(kept, growth)
    if len(rules) > len(kept):  # what is never empty of a rule that is always empty is nothing
        rules = _living(rules, rules_that_hold(rules, is_productive_leaf))
    return Rules(grammar.start, _reachable(Rules(grammar.start, rules)))


def _living(rules: dict[str, Node], alive: set[str]) -> dict[str, Node]:
    if len(alive) == len(rules):
        return rules
    return {name: _prune(node, alive) for name, node in rules.items() if name in alive}


def _reachable(grammar: Rules) -> dict[str, Node]:
    found: dict[str, Node] = {}
    todo = [grammar.start]
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = grammar.rules[name]
            todo.extend(target for target in sorted(references(found[name])) if target not in found)
    return found


def _culprit(rules: dict[str, Node], alive: set[str]) -> str:
    """The dead rule that needs no other dead rule, if rules carry JSON pointers: where the contradiction is."""
    for name, node in rules.items():
        is_schema = "~" not in name.replace("~0", "").replace("~1", "")  # no rule derived from a schema's own
        if name not in alive and name.startswith("#/") and is_schema and not references(node) - alive:
            return name.removeprefix("#")
    return ""


def _restrict(root: Node, alphabet: int) -> Node:
    def leaf(node: Literal | ByteClass) -> Node:
        if isinstance(node, ByteClass):
            return ByteClass(node.mask & alphabet) if node.mask & alphabet else NOTHING
        return node if all(alphabet >> byte & 1 for byte in node.value) else NOTHING

    return _rebuild(root, leaf, RuleRef)


def _prune(root: Node, alive: set[str]) -> Node:
    return _rebuild(root, lambda node: node, lambda name: RuleRef(name) if name in alive else NOTHING)


def _rebuild(root: Node, leaf: Callable[[Literal | ByteClass], Node], reference: Callable[[str], Node]) -> Node:
    new: dict[int, Node] = {}
    for node in postorder(root):
        match node:
            case RuleRef(name):
                new[id(node)] = reference(name)
            case Literal() | ByteClass():
                new[id(node)] = leaf(node)
            case _:
                new[id(node)] = remake(node, [new[id(part)] for part in children(node)])
    return new[id(root)]


def remake(node: Node, parts: list[Node]) -> Node:
    """`node` with `parts` for its `children`, in its simplest form; leaves and references as they are."""
    match node:
        case Sequence():
            return sequence(parts)
        case Choice():
            return choice(parts)
        case Repeat(_, least, most):
            return repeat(parts[0], least, most)
        case Except(_, words):
            return Except(parts[0], words) if parts[0] != NOTHING else NOTHING
        case Flagged(_, flags):
            return Flagged(parts[0], flags) if parts[0] not in (NOTHING, EMPTY) else parts[0]
        case Graph(spec, _, state):
            costs = [math.inf if part == NOTHING else 0.0 for part in parts]
            return Graph(spec, tuple(parts), state) if spec.cost(state, costs) < math.inf else NOTHING
        case _:
            return node


def sequence(parts: Iterable[Node]) -> Node:
    """A `Sequence` without empty parts; nothing where one part matches nothing."""
    kept = tuple(part for part in parts if part != EMPTY)
    if NOTHING in kept:
        return NOTHING
    return EMPTY if not kept else kept[0] if len(kept) == 1 else Sequence(kept)


def choice(options: Iterable[Node]) -> Node:
    """A `Choice` without options that match nothing."""
    kept = tuple(option for option in options if option != NOTHING)
    return kept[0] if len(kept) == 1 else Choice(kept)


def repeat(body: Node, least: int, most: int | None) -> Node:
    """A `Repeat` whose trivial cases are taken away."""
    if body == NOTHING:
        return EMPTY if least == 0 else NOTHING
    if most == 0 or body == EMPTY:
        return EMPTY
    return body if least == most == 1 else Repeat(body, least, most)


def _without_empty_rounds(rules: dict[str, Node], growth: Growth) -> dict[str, Node]:
    """Rewrite counted repetitions of what may be empty, such as ``(a?){3,5}``, to ``(a){0,5}``.

    A round that takes no byte would let the automaton count without reading. Loops (``*``, ``+``, ``?``) do not count.
    """
    return _EmptyRounds(rules, growth).run()


class _EmptyRounds:
    """Rewrites rules, adding for each nullable rule that a counted body needs a twin that is never empty."""

    def __init__(self, rules: dict[str, Node], growth: Growth) -> None:
        self._rules = rules
        self._growth = growth
        self._nullable = rules_that_hold(rules, is_nullable_leaf)
        self._twins: set[str] = set()

    def run(self) -> dict[str, Node]:
        result = {name: self._rewrite(node) for name, node in self._rules.items()}
        made: set[str] = set()
        while fresh := self._twins - made:
            for name in sorted(fresh):
                result[_twin(name)] = self._nonempty(result[name])
            made |= fresh
        return result

    def _rewrite(self, root: Node) -> Node:
        if not any(_counts(node) for node in postorder(root)):
            return root
        empty = holds(root, self._nullable, leaf=is_nullable_leaf)
        new: dict[int, Node] = {}
        for node in postorder(root):
            match node:
                case Repeat(body, _, most) if _counts(node) and empty[id(body)]:
                    new[id(node)] = repeat(self._nonempty(new[id(body)]), 0, most)
                case _:
                    new[id(node)] = remake(node, [new[id(part)] for part in children(node)])
        return new[id(root)]

    def _nonempty(self, root: Node) -> Node:
        return nonempty(root, self._nullable, self._growth, self._twin_of)

    def _twin_of(self, name: str) -> RuleRef:
        self._twins.add(name)
        return RuleRef(_twin(name))


def nonempty(root: Node, nullable: Set[str], growth: Growth, twin: Callable[[str], Node] = RuleRef) -> Node:
    """What `root` matches, less the empty string.

    Args:
        nullable: the rules that match the empty string.
        growth: counts what is made anew.
        twin: what a call of one of them becomes.
    """
    empty = holds(root, nullable, leaf=is_nullable_leaf)
    new: dict[int, Node] = {}
    for node in postorder(root):
        match node:
            case _ if not empty[id(node)]:
                new[id(node)] = node
            case RuleRef(name):
                new[id(node)] = twin(name)
            case Sequence(parts):  # all parts are nullable: the first that is not empty, then the rest
                growth.add(len(parts) * len(parts) // 2)
                new[id(node)] = choice(sequence((new[id(part)], *parts[i + 1 :])) for i, part in enumerate(parts))
            case Choice(options):
                new[id(node)] = choice(new[id(option)] for option in options)
            case Repeat(body, _, most) if most != 0:
                new[id(node)] = repeat(new[id(body)], 1, most)
            case Flagged(body, _) | Except(body, _):
                new[id(node)] = remake(node, [new[id(body)]])
            case Graph(spec, bodies, state):
                edges = spec.edges(state)
                new[id(node)] = choice(sequence((bodies[edge], Graph(spec, bodies, end))) for edge, end in edges)
            case _:
                new[id(node)] = NOTHING
    return new[id(root)]


def _counts(node: Node) -> bool:
    return isinstance(node, Repeat) and (node.min > 1 or node.max not in (1, None))


def _twin(name: str) -> str:
    return f"{name}~nonempty"
