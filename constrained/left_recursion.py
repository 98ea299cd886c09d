"""Rewrites left-recursive rules, which the automaton cannot follow, to right-recursive ones that match the same texts.

The rules of one cycle of left calls are a left-linear system: each is a choice of "another of them, then a rest" and of
alternatives that begin with none of them (its *base*). A text of rule A begins with the base of some rule X, and what
may complete an A after an X is a right-linear rule of its own. Direct and mutual left recursion are the same case; of n
rules in one cycle come at most n * n completions.

Source: Moore, "Removing left recursion from context-free grammars", 2000, section 4 (the left-corner transform).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from .limits import CompileLimits, Growth
from .rules import (
    EMPTY,
    Choice,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    children,
    holds,
    is_nullable_leaf,
    left_cycles,
    optional,
    postorder,
    rules_that_hold,
)
from .simplify import choice, nonempty, remake, repeat, sequence


def without_left_recursion(grammar: Rules, limits: CompileLimits) -> Rules:
    """An equal grammar that `Rules.verify` finds no left recursion in; `grammar` itself where there is none.

    Args:
        grammar: must not refer to rules that do not exist.
        limits: its `rules` and `positions` bound what is made anew.

    Raises:
        GrammarLimitError: too much would be.
    """
    if not left_cycles(grammar.rules):
        return grammar
    growth = Growth(limits)
    start, rules = _without_empty_rules(grammar, growth)
    for cycle in left_cycles(rules):
        limits.check("rules", len(cycle) ** 2, "completions of left-recursive rules that begin with each other")
        rules.update(_solve(cycle, rules, growth))
    return Rules(start, rules)


def _without_empty_rules(grammar: Rules, growth: Growth) -> tuple[str, dict[str, Node]]:
    """An equal grammar in which no rule but a new start rule matches the empty string."""
    nullable = rules_that_hold(grammar.rules, is_nullable_leaf)
    if not nullable:
        return grammar.start, dict(grammar.rules)
    rules = {}
    for name, node in grammar.rules.items():
        explicit = _with_optional_calls(node, nullable)
        rules[name] = nonempty(explicit, set(), growth) if name in nullable else explicit
    start = f"{grammar.start}~start"
    rules[start] = optional(RuleRef(grammar.start)) if grammar.start in nullable else RuleRef(grammar.start)
    return start, rules


def _with_optional_calls(root: Node, nullable: Set[str]) -> Node:
    new: dict[int, Node] = {}
    for node in postorder(root):
        match node:
            case RuleRef(name) if name in nullable:
                new[id(node)] = optional(node)
            case _:
                new[id(node)] = remake(node, [new[id(part)] for part in children(node)])
    return new[id(root)]


@dataclass(slots=True)
class _Split:
    """The non-empty texts of a node: those that begin with a call of one of the cycle's rules, and the others.

    Attributes:
        rests: for each rule that is called first, what follows it.
        base: alternatives that do not begin with such a call, and are not empty.
    """

    rests: dict[str, list[Node]] = field(default_factory=dict)
    base: list[Node] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.base) + sum(map(len, self.rests.values()))

    def add(self, other: _Split, rest: Node, growth: Growth) -> None:
        """All of `other`, each followed by `rest`."""
        growth.add(len(other) * (1 + len(children(rest))))
        for name, rests in other.rests.items():
            self.rests.setdefault(name, []).extend(sequence((each, rest)) for each in rests)
        self.base.extend(sequence((each, rest)) for each in other.base)


def _solve(cycle: set[str], rules: Mapping[str, Node], growth: Growth) -> dict[str, Node]:
    """New rules for those of `cycle`, and their completions."""
    splits = {name: _split(rules[name], cycle, growth) for name in sorted(cycle)}
    if len(splits) == 1:
        _unnest(*splits.popitem(), splits, growth)
    growth.add(len(splits) * sum(map(len, splits.values())))
    users = _users(splits)
    solved: dict[str, Node] = {}
    for goal in splits:
        begun = [
            sequence((choice(split.base), RuleRef(_completion(name, goal))))
            for name, split in splits.items()
            if split.base
        ]
        solved[goal] = choice(begun)
        for name in splits:
            solved[_completion(name, goal)] = _completions(name, goal, users)
    return solved


def _unnest(name: str, split: _Split, splits: dict[str, _Split], growth: Growth) -> None:
    """Put into `splits` what `split` says of `name`, but with the base in place of `name` at the end of a rest.

    ``e ::= e "+" e | n`` is read as ``n ("+" n)*`` and not in every way to group the sums, whose stacks would multiply.
    That is equal, because completions of the only rule of a cycle, one after the other, are a completion again.
    """
    base = choice(split.base)
    growth.add(len(split.rests[name]) * len(postorder(base)))
    rests = [_with_base(rest, name, base) for rest in split.rests[name]]
    splits[name] = _Split({name: [rest for rest in rests if rest != EMPTY]}, split.base)


def _with_base(rest: Node, name: str, base: Node) -> Node:
    """`rest` with `base` for its last part where that is a call of `name`."""
    if rest == RuleRef(name):
        return base
    if rest == optional(RuleRef(name)):
        return optional(base)
    if isinstance(rest, Sequence) and rest.parts:
        return sequence((*rest.parts[:-1], _with_base(rest.parts[-1], name, base)))
    return rest


def _completion(name: str, goal: str) -> str:
    return f"{name}~within~{goal}"


def _users(splits: Mapping[str, _Split]) -> dict[str, list[tuple[str, Node]]]:
    """For each rule, the rules that call it first, and what follows it there."""
    users: dict[str, list[tuple[str, Node]]] = {name: [] for name in splits}
    for user, split in splits.items():
        for name, rests in split.rests.items():
            users[name] += [(user, rest) for rest in rests]
    return users


def _completions(name: str, goal: str, users: Mapping[str, list[tuple[str, Node]]]) -> Node:
    """What makes a text of `goal` out of a text of `name` that it begins with."""
    options = [sequence((rest, RuleRef(_completion(user, goal)))) for user, rest in users[name]]
    return Choice((*options, EMPTY)) if name == goal else Choice(tuple(options))


def _split(root: Node, cycle: Set[str], growth: Growth) -> _Split:
    empty = holds(root, set(), leaf=is_nullable_leaf)  # no rule matches the empty string any more
    done: dict[int, _Split] = {}
    for node in postorder(root):
        split = done[id(node)] = _Split()
        match node:
            case RuleRef(name) if name in cycle:
                split.rests[name] = [EMPTY]
            case Choice(options):
                for option in options:
                    split.add(done[id(option)], EMPTY, growth)
            case Repeat(body, least, most):
                if most != 0:
                    fewer = None if most is None else most - 1
                    split.add(done[id(body)], repeat(body, max(least - 1, 0), fewer), growth)
            case Sequence(parts):
                for index, part in enumerate(parts):
                    growth.add(len(parts) - index)
                    split.add(done[id(part)], sequence(parts[index + 1 :]), growth)
                    if not empty[id(part)]:
                        break
            case _:  # what is left begins with no call
                split.base = [] if empty[id(node)] else [node]
    return done[id(root)]
