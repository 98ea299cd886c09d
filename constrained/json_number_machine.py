"""A deterministic automaton over the digits of a number, for sets of numbers that divisors describe.

It reads a number without its sign from left to right. Its state is what the digits so far say of each constraint: how
they compare with a value, or what they leave when divided. That is a product of small automata, made as it is reached.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from decimal import Decimal

from .errors import GrammarLimitError
from .json_number_digits import exponent_literal, scientific
from .json_number_parts import Comparison, Division, Part, decimal_places
from .json_number_remainders import large_multiples
from .json_number_sets import NumberSet
from .rules import NOTHING, Choice, Graph, Literal, Node, Sequence, StateGraph, byte_set

_MOST_STATES = 20_000
_LEAST_WRITTEN_EXPONENT = -5
"""``json.dumps`` writes floats from 0.0001 on without an exponent."""
_MOST_PLACES = 40


def divisible(numbers: NumberSet) -> Node:
    """The texts of `numbers`, none of them negative, without a sign; `whole` is not looked at.

    Raises:
        GrammarLimitError: the automaton has too many states.
    """
    if numbers.bounds.is_empty():
        return NOTHING
    constraints = _constraints(numbers)
    if len(constraints) == 1 and len(numbers.multiples) == 1 and _is_large(numbers.multiples[0]):
        return large_multiples(int(numbers.multiples[0]))
    options = [_graph(constraints, "start", [constraint.number(constraint.part.start()) for constraint in constraints])]
    if numbers.multiples:
        options += _tiny_multiples(constraints, max(decimal_places(divisor) for divisor in numbers.multiples))
    else:
        options += _tiny_others(numbers)
    return Choice(tuple(option for option in options if option != NOTHING))


def _is_large(divisor: Decimal) -> bool:
    """Whether a divisor is an integer that leaves too many remainders, apart from how it must end."""
    if divisor < _MOST_STATES or decimal_places(divisor):
        return False
    rest = int(divisor)
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    return rest > _MOST_STATES


def _tiny_multiples(constraints: list[_Constraint], places: int) -> list[Node]:
    """Numbers below 0.0001 in scientific notation, for each exponent that a number of so many places may have."""
    options: list[Node] = []
    for exponent in range(_LEAST_WRITTEN_EXPONENT, -min(places, _MOST_PLACES) - 1, -1):
        start = [constraint.number(_after_zeros(constraint.part, -exponent - 1)) for constraint in constraints]
        graph = _graph(constraints, "first", start)
        if graph != NOTHING:
            options.append(Sequence((graph, exponent_literal(exponent))))
    return options


def _tiny_others(numbers: NumberSet) -> list[Node]:
    """Numbers but zero that are too small to be multiples, in scientific notation: all that the bounds leave."""
    most = min(divisor.adjusted() for divisor in numbers.not_multiples) - 1
    return [scientific(part, most=most) for part in numbers.bounds.without(numbers.excluded)]


_FAILED = -1
"""The number of every state of a constraint that nothing which may come makes hold."""


class _Constraint:
    """What a part must say in the end. Its states are numbered as they are met, each with what may follow it."""

    def __init__(self, part: Part, allowed: tuple[int, ...]) -> None:
        self.part = part
        self._allowed = allowed
        self._numbers: dict[Hashable, int] = {}
        self._states: list[Hashable] = []
        self._after: dict[int, tuple[int, ...]] = {}
        self._ends: dict[int, bool] = {}

    def number(self, state: Hashable) -> int:
        """The number of a state of the part."""
        known = self._numbers.get(state)
        if known is None:
            known = _FAILED
            if not self.part.is_settled(state) or self.part.result(state) in self._allowed:
                known = len(self._states)
                self._states.append(state)
            self._numbers[state] = known
        return known

    def after(self, number: int) -> tuple[int, ...]:
        """The state after each of the ten digits, and after the point."""
        known = self._after.get(number)
        if known is None:
            state, part = self._states[number], self.part
            digits = [self.number(part.digit(state, digit)) for digit in range(10)]
            known = self._after[number] = (*digits, self.number(part.point(state)))
        return known

    def may_end(self, number: int) -> bool:
        """Whether it holds if the number ends here."""
        known = self._ends.get(number)
        if known is None:
            known = self._ends[number] = self.part.result(self._states[number]) in self._allowed
        return known


def _constraints(numbers: NumberSet) -> list[_Constraint]:
    bounds = numbers.bounds
    found: list[_Constraint] = []
    if bounds.low is not None and (bounds.low > 0 or bounds.low_exclusive):
        found.append(_Constraint(Comparison(bounds.low), (1,) if bounds.low_exclusive else (0, 1)))
    if bounds.high is not None:
        found.append(_Constraint(Comparison(bounds.high), (-1,) if bounds.high_exclusive else (-1, 0)))
    found += [_Constraint(Comparison(value), (-1, 1)) for value in numbers.excluded]
    found += [_Constraint(Division(divisor), (1,)) for divisor in numbers.multiples]
    found += [_Constraint(Division(divisor), (0,)) for divisor in numbers.not_multiples]
    return found


def _after_zeros(part: Part, count: int) -> Hashable:
    """What `part` knows after ``0.`` and so many zeros."""
    state = part.point(part.digit(part.start(), 0))
    for _ in range(count):
        state = part.digit(state, 0)
    return state


# mode: for each character that may come, the mode after it
_MODES: dict[str, dict[str, str]] = {
    "start": {"0": "zero"} | dict.fromkeys("123456789", "whole"),
    "zero": {".": "point"},
    "whole": dict.fromkeys("0123456789", "whole") | {".": "point"},
    "point": dict.fromkeys("0123456789", "fraction"),
    "fraction": dict.fromkeys("0123456789", "fraction"),
    # the digits of scientific notation whose exponent is negative: all of them stand after the number's own point
    "first": dict.fromkeys("123456789", "mantissa"),
    "mantissa": {".": "mantissa point"},
    "mantissa point": dict.fromkeys("0123456789", "fraction"),
}
_ENDS = {"zero", "whole", "fraction", "mantissa"}
_POINT, _SAME = 10, 11  # places in what may come after a state, behind those of the digits
_ORDER = list(_MODES)
_MOVES = [
    [
        (char, (_SAME if mode == "mantissa" else _POINT) if char == "." else int(char), _ORDER.index(after))
        for char, after in moves.items()
    ]
    for mode, moves in ((mode, _MODES.get(mode, {})) for mode in _ORDER)
]
"""By mode: a character, the place of what comes after it, and the mode after it.

The digits of a mantissa all stand after the number's own point, so its point says nothing.
"""
_MODE_BITS = 4
_PART_BITS = 24


class _Product:
    """States of several constraints and a mode as one integer, so that a step of all is a sum of theirs."""

    def __init__(self, constraints: list[_Constraint]) -> None:
        self._shifted = [(part, _MODE_BITS + _PART_BITS * index) for index, part in enumerate(constraints)]
        self._failed = -1 << (_MODE_BITS + _PART_BITS * (len(constraints) + 1))
        self._rows: list[dict[int, tuple[int, ...]]] = [{} for _ in constraints]

    def code(self, mode: str, parts: Items[int]) -> int:
        """The state of `mode` and the numbers of the states of all constraints."""
        return _ORDER.index(mode) + sum(part << shift for part, (_, shift) in zip(parts, self._shifted, strict=True))

    def after(self, code: int) -> list[int]:
        """By place, the states, in no mode, after each digit, the point, and nothing; below 0 where one fails."""
        rows = []
        for (constraint, shift), known in zip(self._shifted, self._rows, strict=True):
            number = code >> shift & (1 << _PART_BITS) - 1
            row = known.get(number)
            if row is None:
                found = (*constraint.after(number), number)
                row = known[number] = tuple([self._failed if one == _FAILED else one << shift for one in found])
            rows.append(row)
        return list(map(sum, zip(*rows, strict=True)))

    def may_end(self, code: int) -> bool:
        """Whether the number may end there."""
        if _ORDER[code & (1 << _MODE_BITS) - 1] not in _ENDS:
            return False
        return all(part.may_end(code >> shift & (1 << _PART_BITS) - 1) for part, shift in self._shifted)


def _graph(constraints: list[_Constraint], mode: str, start: Items[int]) -> Node:
    """The numbers that all constraints allow, from a start in `mode`; NOTHING if there are none."""
    if _FAILED in start:
        return NOTHING
    product = _Product(constraints)
    order = [product.code(mode, start)]
    index = {order[0]: 0}
    moves: list[dict[int, str]] = []
    for state in order:  # grows while it is walked
        after = product.after(state)
        chars: dict[int, str] = {}
        for char, place, next_mode in _MOVES[state & (1 << _MODE_BITS) - 1]:
            target = after[place]
            if target >= 0:
                number = index.setdefault(target | next_mode, len(order))
                if number == len(order):
                    order.append(target | next_mode)
                chars[number] = chars.get(number, "") + char
        moves.append(chars)
        if len(order) > _MOST_STATES:
            raise GrammarLimitError(
                f"the multipleOf and bounds of a number need more than {_MOST_STATES} states; use a smaller divisor, "
                "or one with more zeros at its end"
            )
    return _table(moves, [product.may_end(state) for state in order])


def _table(moves: list[dict[int, str]], ends: list[bool]) -> Node:
    """The graph of these moves, without those from which no end can be reached."""
    living = _living(moves, ends)
    if 0 not in living:
        return NOTHING
    bodies: dict[str, int] = {}
    edges = [
        tuple((bodies.setdefault(chars, len(bodies)), end) for end, chars in after.items() if end in living)
        for after in moves
    ]
    nodes: list[Node] = [byte_set(chars.encode()) if len(chars) > 1 else Literal(chars.encode()) for chars in bodies]
    return Graph(TableGraph(tuple(edges), tuple(ends)), tuple(nodes), 0)


def _living(moves: list[dict[int, str]], ends: list[bool]) -> set[int]:
    sources: list[list[int]] = [[] for _ in moves]
    for source, after in enumerate(moves):
        for end in after:
            sources[end].append(source)
    todo = [state for state, is_end in enumerate(ends) if is_end]
    living = set(todo)
    while todo:
        fresh = [source for source in sources[todo.pop()] if source not in living]
        living.update(fresh)
        todo.extend(fresh)
    return living


@dataclass(frozen=True, eq=False)
class TableGraph(StateGraph):
    """A graph whose states are numbered, all of its edges known."""

    moves: tuple[tuple[tuple[int, int], ...], ...]
    final: tuple[bool, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_costs", {})

    def edges(self, state: Hashable) -> Iterable[tuple[int, Hashable]]:
        assert isinstance(state, int)
        return self.moves[state]

    def ends(self, state: Hashable) -> bool:
        assert isinstance(state, int)
        return self.final[state]

    def cost(self, state: Hashable, costs: Items[float]) -> float:
        assert isinstance(state, int)
        known: dict[tuple[float, ...], list[float]] = self.__dict__["_costs"]
        key = tuple(costs)
        if key not in known:
            if len(known) >= 8:
                known.clear()  # one compilation asks with few costs, most of them all the same
            known[key] = self._cheapest(key)
        return known[key][state]

    def _cheapest(self, costs: tuple[float, ...]) -> list[float]:
        """Least cost to an end, of every state. Source: Dijkstra 1959, from the ends back."""
        sources: list[list[tuple[int, float]]] = [[] for _ in self.moves]
        for source, after in enumerate(self.moves):
            for body, end in after:
                sources[end].append((source, costs[body]))
        best = [0.0 if is_end else math.inf for is_end in self.final]
        queue = [(0.0, state) for state, is_end in enumerate(self.final) if is_end]
        while queue:
            cost, state = heapq.heappop(queue)
            if cost > best[state]:
                continue
            for source, step in sources[state]:
                if cost + step < best[source]:
                    best[source] = cost + step
                    heapq.heappush(queue, (cost + step, source))
        return best
