"""Conjunctions of properties of strings, brought to a form that rules are written from; kept for the whole process.

The cheapest exact form is taken: a pattern that stands alone stays as it is, since to make it deterministic may take
exponentially many states; lengths go into its repetitions where that is exact; all else becomes one automaton.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal as Kind

from .char_dfa import CharDfa, Trimmed, intersection, pattern_dfa, trimmed, words_dfa
from .char_lengths import length_graph
from .char_machine import Recognizer
from .code_points import ANY
from .errors import GrammarError, GrammarLimitError, UnsupportedGrammarError
from .json_formats import FORMATS, NOT_REGULAR
from .limits import CompileLimits
from .regex import Branch, plain_branches
from .regex_parser import parse_regex
from .regex_tree import Alternation, Chars, Concat, Pattern, Repetition, length_range, parts

Key = tuple[Kind["pattern", "format"], str]


@dataclass(frozen=True, slots=True)
class Plain:
    """Strings of any of some branches of a pattern; lengths are already in them."""

    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Bounded:
    """Strings of `automaton` of `low` to `high` characters. Without states it accepts nothing."""

    automaton: Trimmed
    low: int
    high: int | None


Shape = Plain | Bounded
Range = tuple[int, int | None]


@lru_cache(maxsize=1024)
def tree_of(key: Key, limits: CompileLimits) -> Pattern:
    """The tree of a pattern or of a known format.

    Raises:
        GrammarError: see `parse_regex`; also a format that is no regular expression.
    """
    kind, text = key
    if kind == "pattern":
        return parse_regex(text, "ecma", limits)
    if text not in FORMATS:
        raise UnsupportedGrammarError(f"the format {text!r} is not supported together with what else holds")
    return parse_regex(FORMATS[text].pattern, "python", limits)


@lru_cache(maxsize=256)
def recognizer_of(key: Key, limits: CompileLimits) -> Recognizer:
    """Says which strings have one property, without their length if it is a format's."""
    return Recognizer(tree_of(key, limits), search=key[0] == "pattern")


@lru_cache(maxsize=64)
def open_dfa_of(key: Key, limits: CompileLimits) -> CharDfa:
    """The automaton of one property, without the bound that a format sets on the length beside its pattern.

    Raises:
        GrammarLimitError: it is too large.
    """
    return pattern_dfa(tree_of(key, limits), search=key[0] == "pattern")


@lru_cache(maxsize=64)
def dfa_of(key: Key, limits: CompileLimits) -> CharDfa:
    """The automaton of one property, length included.

    Raises:
        GrammarLimitError: it is too large.
    """
    automaton = open_dfa_of(key, limits)
    most = longest(key)
    if most is None:
        return automaton
    return intersection([automaton, pattern_dfa(Repetition(Chars(ANY), 0, most), search=False)])


def longest(key: Key) -> int | None:
    """The bound that a format sets on its length beside its pattern."""
    return FORMATS[key[1]].max_length if key[0] == "format" and key[1] in FORMATS else None


def is_regular(key: Key) -> bool:
    """Whether a property is a regular language, which `tree_of` and what is made of it know."""
    return key[0] == "pattern" or key[1] not in NOT_REGULAR


def _is_pattern(text: str, limits: CompileLimits) -> bool:
    """Whether `text` is a legal regular expression, one that is refused for what it asks for included."""
    try:
        parse_regex(text, "ecma", limits)
    except (UnsupportedGrammarError, GrammarLimitError):
        return True
    except GrammarError:
        return False
    return True


def has(key: Key, text: str, limits: CompileLimits) -> bool:
    """Whether `text` has one property."""
    if not is_regular(key):
        return _is_pattern(text, limits)
    most = longest(key)
    return (most is None or len(text) <= most) and recognizer_of(key, limits).matches(text)


@lru_cache(maxsize=512)
def shape_of(
    required: tuple[Key, ...],
    forbidden: tuple[Key, ...],
    bounds: Range,
    excluded: frozenset[str],
    limits: CompileLimits,
) -> Shape:
    """The strings that have all of `required` and none of `forbidden`, within `bounds`, less `excluded`.

    Raises:
        GrammarError: see `dfa_of`.
    """
    low, high = _tightened(required, bounds)
    if len(required) == 1 and not forbidden and not excluded:
        plain = _plain(required[0], low, high, limits)
        if plain is not None:
            return plain
    return bounded_of(required, forbidden, bounds, excluded, limits)


def _tightened(required: tuple[Key, ...], bounds: Range) -> Range:
    highs = [most for most in (bounds[1], *map(longest, required)) if most is not None]
    return bounds[0], min(highs, default=None)


@lru_cache(maxsize=512)
def bounded_of(
    required: tuple[Key, ...],
    forbidden: tuple[Key, ...],
    bounds: Range,
    excluded: frozenset[str],
    limits: CompileLimits,
) -> Bounded:
    """As `shape_of`, but as an automaton in any case."""
    low, high = _tightened(required, bounds)
    automaton = _automaton(required, forbidden, excluded, limits)
    if not automaton.edges:
        return Bounded(automaton, 0, None)
    least, most = automaton.lengths()
    if least >= low and (high is None or (most is not None and most <= high)):
        return Bounded(automaton, 0, None)
    if (high is not None and high < low) or length_graph(automaton, low, high).is_empty():
        return Bounded(_NOTHING, 0, None)
    return Bounded(automaton, low, high)


_NOTHING = Trimmed((), ())


@lru_cache(maxsize=256)
def _automaton(
    required: tuple[Key, ...], forbidden: tuple[Key, ...], excluded: frozenset[str], limits: CompileLimits
) -> Trimmed:
    automata = [open_dfa_of(key, limits) for key in required]  # the callers bound the length
    automata += [dfa_of(key, limits).complement() for key in forbidden]
    if excluded or not automata:
        automata.append(words_dfa(sorted(excluded)).complement())
    return trimmed(intersection(automata))


def _plain(key: Key, low: int, high: int | None, limits: CompileLimits) -> Plain | None:
    tree = tree_of(key, limits)
    branches = plain_branches(tree)
    if branches is None:
        return None
    if key[0] == "format":
        branches = [Branch(branch.items, at_start=True, at_end=True) for branch in branches]
    kept: list[Branch] = []
    for branch in branches:
        if has_nothing(Concat(branch.items)):
            continue
        bounded = _bounded(branch, low, high)
        if bounded is None:
            return None
        if not has_nothing(Concat(bounded.items)):
            kept.append(bounded)
    return Plain(tuple(kept))


def _bounded(branch: Branch, low: int, high: int | None) -> Branch | None:
    """`branch` with only texts of `low` to `high` characters; None where that is not known to be exact."""
    least, most = length_range(Concat(branch.items))
    is_whole = branch.at_start and branch.at_end
    if least >= low and (high is None or (is_whole and most is not None and most <= high)):
        return branch
    items = tuple(_flat(branch.items))
    ranges = [length_range(item) for item in items]
    varying = [index for index, (fewest, most) in enumerate(ranges) if fewest != most]
    if not is_whole or len(varying) > 1:
        return None
    fixed = sum(fewest for fewest, most in ranges if fewest == most)
    if not varying:
        return Branch((Alternation(()),), at_start=True, at_end=True)
    index = varying[0]
    run = _bounded_run(items[index], low - fixed, None if high is None else high - fixed)
    return None if run is None else Branch((*items[:index], run, *items[index + 1 :]), at_start=True, at_end=True)


def _bounded_run(item: Pattern, low: int, high: int | None) -> Pattern | None:
    if not isinstance(item, Repetition) or not isinstance(item.item, Chars):
        return None
    least = max(item.low, low)
    bounds = [bound for bound in (item.high, high) if bound is not None]
    most = min(bounds, default=None)
    return Alternation(()) if most is not None and most < least else Repetition(item.item, least, most)


def _flat(items: Iterable[Pattern]) -> list[Pattern]:
    """`items` with those of sequences inside in their place."""
    todo = list(items)[::-1]
    found: list[Pattern] = []
    while todo:
        item = todo.pop()
        if isinstance(item, Concat):
            todo.extend(reversed(item.items))
        else:
            found.append(item)
    return found


def has_nothing(tree: Pattern) -> bool:
    """Whether a tree that does not look around matches no text at all."""
    empty: dict[int, bool] = {}
    for part in reversed(parts(tree)):
        match part:
            case Chars(chars):
                empty[id(part)] = not chars
            case Concat(items):
                empty[id(part)] = any(empty[id(item)] for item in items)
            case Alternation(branches):
                empty[id(part)] = all(empty[id(branch)] for branch in branches)
            case Repetition(item, low, _):
                empty[id(part)] = low > 0 and empty[id(item)]
            case _:
                empty[id(part)] = False
    return empty[id(tree)]
