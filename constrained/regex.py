"""Regular expressions as rules over bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .code_points import CodePoints, utf8
from .errors import GrammarLimitError, UnsupportedGrammarError
from .limits import CompileLimits, Deadline
from .regex_parser import parse_regex
from .regex_tree import Alternation, Anchor, Chars, Concat, Pattern, Repetition, find_anchor, length_range
from .rules import ByteClass, Choice, Node, Repeat, RuleRef, Rules, Sequence

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
        GrammarError: see `parse_regex`; also an anchor that is not at an end of the pattern.
    """
    rules: dict[str, Node] = {}
    chars = CharRules(rules, "utf8", utf8, deadline)
    branches = anchored_branches(parse_regex(pattern, "python", limits), pattern)
    rules["start"] = Choice(tuple(lower_pattern(Concat(branch.items), chars) for branch in branches))
    return Rules("start", rules)


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
        UnsupportedGrammarError: an anchor that is in the middle, or repeated.
        GrammarLimitError: too many alternatives.
    """
    todo: list[tuple[Pattern, ...]] = [(tree,)]
    done: list[Branch] = []
    while todo:
        items = todo.pop()
        index = next((i for i, item in enumerate(items) if _hides_anchor(item)), None)
        if index is None:
            done.append(_checked(_branch(items), pattern))
        else:
            todo.extend((*items[:index], *way, *items[index + 1 :]) for way in reversed(_ways(items[index])))
        if len(todo) + len(done) > _MAX_BRANCHES:
            raise GrammarLimitError(f"the anchors of {pattern!r} stand in more than {_MAX_BRANCHES} alternatives")
    return done


def _hides_anchor(item: Pattern) -> bool:
    return isinstance(item, Concat | Alternation) and find_anchor(item) is not None


def _ways(item: Pattern) -> list[tuple[Pattern, ...]]:
    if isinstance(item, Alternation):
        return [(branch,) for branch in item.branches]
    return [item.items] if isinstance(item, Concat) else [(item,)]


def _checked(branch: Branch, pattern: str) -> Branch:
    anchor = find_anchor(Concat(branch.items))
    if anchor is not None:
        raise UnsupportedGrammarError(
            f"the regular expression {pattern!r} has an anchor that is not at an end, which is not supported",
            pointer=f"@{anchor.offset}",
        )
    return branch


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
        case Anchor(_, offset):
            raise UnsupportedGrammarError("an anchor that is not at an end is not supported", pointer=f"@{offset}")


def lower_search(
    pattern: str, low: int, high: int | None, chars: CharRules, any_char: Node, limits: CompileLimits
) -> Node:
    """The rule of strings of `low` to `high` characters in which ECMA-262's `pattern` is found somewhere.

    Raises:
        UnsupportedGrammarError: the lengths matter and the pattern is more than one repeated set of characters.
        GrammarError: see `parse_regex`.
    """
    anything = Repeat(any_char, 0, None)
    options: list[Node] = []
    for branch in anchored_branches(parse_regex(pattern, "ecma", limits), pattern):
        body = _bounded(branch, low, high)
        if body is None:
            raise UnsupportedGrammarError(
                f"the pattern {pattern!r} together with minLength or maxLength is not supported; put the length into it"
            )
        before = () if branch.at_start else (anything,)
        after = () if branch.at_end else (anything,)
        options.append(Sequence((*before, lower_pattern(body, chars), *after)))
    return Choice(tuple(options))


def _bounded(branch: Branch, low: int, high: int | None) -> Pattern | None:
    """The branch's pattern with only texts of `low` to `high` characters; None where that is not known to be exact."""
    whole = Concat(branch.items)
    least, most = length_range(whole)
    is_whole = branch.at_start and branch.at_end
    if not is_whole:
        most = None
    if least >= low and (high is None or (most is not None and most <= high)):
        return whole
    if not is_whole or len(branch.items) != 1:
        return None
    return _bounded_run(branch.items[0], low, high)


def _bounded_run(item: Pattern, low: int, high: int | None) -> Pattern | None:
    if not isinstance(item, Repetition) or not isinstance(item.item, Chars):
        return None
    least = max(item.low, low)
    bounds = [bound for bound in (item.high, high) if bound is not None]
    most = min(bounds, default=None)
    return Alternation(()) if most is not None and most < least else Repetition(item.item, least, most)
