"""Ways to write an element or a member of which several things are counted: one for each set of what it is."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import product
from typing import NamedTuple

from .errors import UnsupportedGrammarError
from .json_terms import Terms
from .rules import NOTHING, Node

MAX_WAYS = 16
"""Ways to write one element or member."""


class Counted(NamedTuple):
    """One thing that is counted: what holds of what counts, and of what does not; nothing where that is the same."""

    met: Terms
    unmet: Terms


def ways(terms: Terms, counted: Items[tuple[int, Counted]], value: Callable[[Terms], Node]) -> list[tuple[Node, int]]:
    """What is of `terms`, split by what of `counted` it is, each with a mask of that; nodes are what `value` gives.

    What need not be denied may count or not, so the ways may overlap; one that is never of use is left out.

    Args:
        terms: of the element or member.
        counted: what it may be, with the index of its bit in masks.
        value: gives the node of a conjunction.

    Raises:
        UnsupportedGrammarError: there are too many ways.
    """
    found: list[tuple[Terms, int, Node]] = []
    exact = [(index, one) for index, one in counted if one.unmet]
    free = [(index, one) for index, one in counted if not one.unmet]
    _check(1 << len(exact), counted)
    for signs in product((True, False), repeat=len(exact)):
        more = [term for sign, (_, one) in zip(signs, exact, strict=True) for term in (one.met if sign else one.unmet)]
        mask = sum(1 << index for sign, (index, _) in zip(signs, exact, strict=True) if sign)
        node = value((*terms, *more))
        if node != NOTHING:
            found.append(((*terms, *more), mask, node))
    for index, one in free:
        found = [way for before in found for way in _split(before, index, one, value)]
        _check(len(found), counted)
    return [(node, mask) for _, mask, node in found]


def _split(
    before: tuple[Terms, int, Node], index: int, one: Counted, value: Callable[[Terms], Node]
) -> list[tuple[Terms, int, Node]]:
    """A way as it is, and with one thing more that it is; only that where it is so anyway."""
    terms, mask, node = before
    longer = (*terms, *one.met)
    met = value(longer)
    if met == NOTHING:
        return [before]
    after = (longer, mask | 1 << index, met)
    return [after] if met == node else [before, after]


def _check(number: int, counted: Items[tuple[int, Counted]]) -> None:
    if number > MAX_WAYS:
        pointer = next((term.pointer for _, one in counted for term in one.met if term.pointer), "")
        message = f"more than {MAX_WAYS} ways to write one element or member whose likes are counted"
        raise UnsupportedGrammarError(f"{message} are not supported", pointer=pointer)
