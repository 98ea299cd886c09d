"""Multiples of a large integer, whose remainders are too many to list: a graph whose states are made when met."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from .errors import GrammarLimitError
from .rules import Graph, Literal, Node, StateGraph

_POINT = 10  # the bodies before it are the digits


def large_multiples(divisor: int) -> Node:
    """The multiples of `divisor` from zero on, each also with ``.0`` or more zeros."""
    bodies = tuple(Literal(char.encode()) for char in "0123456789.")
    return Graph(_Remainders(divisor), bodies, "start")


@dataclass(frozen=True)
class _Remainders(StateGraph):
    """States: the remainder of the digits so far, or which part of the spelling comes."""

    divisor: int

    def edges(self, state: Hashable) -> Iterable[tuple[int, Hashable]]:
        """Digits lead from remainder to remainder; from every one of them some multiple is still to be had."""
        if isinstance(state, int):
            yield from ((digit, (state * 10 + digit) % self.divisor) for digit in range(10))
        if state in (0, "zero"):
            yield _POINT, "point"
        if state == "start":
            yield from ((digit, digit % self.divisor if digit else "zero") for digit in range(10))
        if state in ("point", "fraction"):
            yield 0, "fraction"

    def ends(self, state: Hashable) -> bool:
        """Whether the number so far is a multiple."""
        return state in (0, "zero", "fraction")

    def cost(self, state: Hashable, costs: Items[float]) -> float:
        """The least number of digits that give a multiple.

        Raises:
            GrammarLimitError: digits do not all cost the same.
        """
        if len(set(costs[:_POINT])) > 1:
            raise GrammarLimitError("multiples of so large a number need digits that all cost the same")
        if self.ends(state):
            return 0.0
        if not isinstance(state, int):
            return costs[0]
        digits = 1
        while -state * 10**digits % self.divisor >= 10**digits:
            digits += 1
        return digits * costs[0]
