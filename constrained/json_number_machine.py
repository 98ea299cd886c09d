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
    options = [_graph(constraints, "start", [constraint.part.start() for constraint in constraints])]
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
        start = [_after_zeros(constraint.part, -exponent - 1) for constraint in constraints]
        graph = _graph(constraints, "first", start)
        if graph != NOTHING:
            options.append(Sequence((graph, exponent_literal(exponent))))
    return options


def _tiny_others(numbers: NumberSet) -> list[Node]:
    """Numbers but zero that are too small to be multiples, in scientific notation: all that the bounds leave."""
    most = min(divisor.adjusted() for divisor in numbers.not_multiples) - 1
    return [scientific(part, most=most) for part in numbers.bounds.without(numbers.excluded)]


@dataclass(frozen=True, slots=True)
class _Constraint:
    part: Part
    allowed: tuple[int, ...]

    def fails(self, state: Hashable) -> bool:
        """Whether nothing that may come makes it hold."""
        return self.part.is_settled(state) and self.part.result(state) not in self.allowed


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
_State = tuple[str, tuple[Hashable, ...]]


def _graph(constraints: list[_Constraint], mode: str, start: Items[Hashable]) -> Node:
    """The numbers that all constraints allow, from a start in `mode`; NOTHING if there are none."""
    first: _State = (mode, tuple(start))
    index = {first: 0}
    order = [first]
    moves: list[dict[int, list[str]]] = []
    for state in order:  # grows while it is walked
        after: dict[int, list[str]] = {}
        for char, following in _following(constraints, state):
            if following not in index:
                index[following] = len(order)
                order.append(following)
            after.setdefault(index[following], []).append(char)
        moves.append(after)
        if len(order) > _MOST_STATES:
            raise GrammarLimitError(
                f"the multipleOf and bounds of a number need more than {_MOST_STATES} states; use a smaller divisor, "
                "or one with more zeros at its end"
            )
    ends = [_may_end(constraints, state) for state in order]
    return _table(moves, ends)


def _following(constraints: list[_Constraint], state: _State) -> Iterable[tuple[str, _State]]:
    mode, parts = state
    for char, next_mode in _MODES[mode].items():
        if char == ".":
            is_own = mode != "mantissa"
            after = [c.part.point(part) if is_own else part for c, part in zip(constraints, parts, strict=True)]
        else:
            after = [c.part.digit(part, int(char)) for c, part in zip(constraints, parts, strict=True)]
        if not any(c.fails(part) for c, part in zip(constraints, after, strict=True)):
            yield char, (next_mode, tuple(after))


def _may_end(constraints: list[_Constraint], state: _State) -> bool:
    mode, parts = state
    return mode in _ENDS and all(c.part.result(p) in c.allowed for c, p in zip(constraints, parts, strict=True))


def _table(moves: list[dict[int, list[str]]], ends: list[bool]) -> Node:
    """The graph of these moves, without those from which no end can be reached."""
    living = _living(moves, ends)
    if 0 not in living:
        return NOTHING
    bodies: dict[str, int] = {}
    edges = [
        tuple((bodies.setdefault("".join(chars), len(bodies)), end) for end, chars in after.items() if end in living)
        for after in moves
    ]
    nodes: list[Node] = [byte_set(chars.encode()) if len(chars) > 1 else Literal(chars.encode()) for chars in bodies]
    return Graph(TableGraph(tuple(edges), tuple(ends)), tuple(nodes), 0)


def _living(moves: list[dict[int, list[str]]], ends: list[bool]) -> set[int]:
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
