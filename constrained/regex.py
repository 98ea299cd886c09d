"""Regular expressions as rules over bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from .char_dfa import Trimmed, pattern_dfa, trimmed
from .code_points import CodePoints, utf8
from .errors import GrammarLimitError, UnsupportedGrammarError
from .limits import CompileLimits, Deadline
from .regex_parser import parse_regex
from .regex_tree import (
    Alternation,
    Anchor,
    Boundary,
    Chars,
    Concat,
    Look,
    Pattern,
    Repetition,
    find_context,
)
from .rules import EMPTY, NOTHING, ByteClass, Choice, Node, Repeat, RuleRef, Rules, Sequence

Spelling = Callable[[CodePoints], Node]

_MAX_BRANCHES = 1000


class CharRules:
    """Rules of the character sets of one grammar, each made once, in one spelling."""

    def __init__(self, rules: dict[str, Node], prefix: str, spelling: Spelling, deadline: Deadline) -> None:
        """New rules go into `rules`, under names that begin with `prefix`, until `deadline`."""
        self._rules = rules
        self._prefix = prefix
        self._spelling = spelling
        self._deadline = deadline
        self._names: dict[CodePoints, str] = {}

    def node(self, chars: CodePoints) -> Node:
        """One character of `chars`.

        Raises:
            GrammarLimitError: out of time.
        """
        name = self._names.get(chars)
        if name is None:
            self._deadline.check()
            spelled = self._spelling(chars)
            if isinstance(spelled, ByteClass):
                return spelled
            name = self._names[chars] = f"{self._prefix}/{len(self._names)}"
            self._rules[name] = spelled
        return RuleRef(name)


def lower_regex(pattern: str, limits: CompileLimits, deadline: Deadline) -> Rules:
    """Rules of the texts that ``re.fullmatch(pattern, text)`` matches, in UTF-8.

    Raises:
        GrammarError: see `parse_regex`; also where what looks around needs too large an automaton.
    """
    rules: dict[str, Node] = {}
    chars = CharRules(rules, "utf8", utf8, deadline)
    tree = parse_regex(pattern, "python", limits)
    branches = plain_branches(tree)
    if branches is None:
        rules["start"] = lower_automaton(trimmed(pattern_dfa(tree, search=False)), "state", EMPTY, chars.node, rules)
    else:
        rules["start"] = Choice(tuple(lower_pattern(Concat(branch.items), chars) for branch in branches))
    deadline.check()
    return Rules("start", rules)


def lower_automaton(
    automaton: Trimmed, name: str, end: Node, chars: Callable[[CodePoints], Node], rules: dict[str, Node]
) -> Node:
    """The texts of `automaton`, each followed by `end`: one rule a state in `rules`, under names after `name`.

    Every call of a state is the last thing that a rule does, so no stack grows.
    """
    for state, row in enumerate(automaton.edges):
        options: list[Node] = [Sequence((chars(taken), RuleRef(f"{name}/{target}"))) for taken, target in row]
        if automaton.accepting[state]:
            options.append(end)
        rules[f"{name}/{state}"] = Choice(tuple(options))
    return RuleRef(f"{name}/0") if automaton.edges else NOTHING


@dataclass(frozen=True, slots=True)
class Branch:
    """One way through a pattern: its items without the anchors at the ends, and whether there were any."""

    items: tuple[Pattern, ...]
    at_start: bool
    at_end: bool


def _branch(items: tuple[Pattern, ...]) -> Branch:
    first, last = 0, len(items)
    while first < last and _is_anchor(items[first], "start"):
        first += 1
    while last > first and _is_anchor(items[last - 1], "end"):
        last -= 1
    return Branch(items[first:last], first > 0, last < len(items))


def _is_anchor(item: Pattern, side: str) -> bool:
    return isinstance(item, Anchor) and item.side == side


def anchored_branches(tree: Pattern, pattern: str) -> list[Branch]:
    """`tree` as alternatives whose anchors, if any, stand at their ends: ``(^a|b)c`` is ``^ac`` or ``bc``.

    Raises:
        UnsupportedGrammarError: it looks around elsewhere.
        GrammarLimitError: too many alternatives.
    """
    found: list[Branch] = []
    for branch in _branches(tree):
        context = find_context(Concat(branch.items))
        if context is not None:
            _refuse(context, pattern)
        found.append(branch)
        if len(found) > _MAX_BRANCHES:
            raise GrammarLimitError(f"the anchors of {pattern!r} stand in more than {_MAX_BRANCHES} alternatives")
    return found


def plain_branches(tree: Pattern) -> list[Branch] | None:
    """`tree` as `anchored_branches` has it; None where that cannot be."""
    found: list[Branch] = []
    for branch in _branches(tree):
        if len(found) == _MAX_BRANCHES or find_context(Concat(branch.items)) is not None:
            return None
        found.append(branch)
    return found


def _branches(tree: Pattern) -> Iterator[Branch]:
    todo: list[tuple[Pattern, ...]] = [(tree,)]
    while todo:
        items = todo.pop()
        index = next((i for i, item in enumerate(items) if _hides_anchor(item)), None)
        if index is None:
            yield _branch(items)
        else:
            todo.extend((*items[:index], *way, *items[index + 1 :]) for way in reversed(_ways(items[index])))


def _refuse(context: Anchor | Boundary | Look, pattern: str) -> NoReturn:
    feature = "an anchor that is not at an end"
    if isinstance(context, Boundary):
        feature = f"a word boundary (\\{'B' if context.negated else 'b'})"
    elif isinstance(context, Look):
        feature = context.name
    raise UnsupportedGrammarError(
        f"the regular expression {pattern!r} uses {feature}, which is not supported here", pointer=f"@{context.offset}"
    )


def _hides_anchor(item: Pattern) -> bool:
    return isinstance(item, Concat | Alternation) and find_context(item) is not None


def _ways(item: Pattern) -> list[tuple[Pattern, ...]]:
    if isinstance(item, Alternation):
        return [(branch,) for branch in item.branches]
    return [item.items] if isinstance(item, Concat) else [(item,)]


def lower_pattern(tree: Pattern, chars: CharRules) -> Node:
    """The rule of a `tree` without anchors. Recursion is bounded by the parser's limit on nesting."""
    match tree:
        case Chars(members):
            return chars.node(members)
        case Concat(items):
            return Sequence(tuple(lower_pattern(item, chars) for item in items))
        case Alternation(branches):
            return Choice(tuple(lower_pattern(branch, chars) for branch in branches))
        case Repetition(item, low, high):
            return Repeat(lower_pattern(item, chars), low, high)
        case Anchor() | Boundary() | Look():
            _refuse(tree, "")
