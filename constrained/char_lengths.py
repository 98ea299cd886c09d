"""Texts of an automaton over characters with bounds on their length, as a `StateGraph`: (state, characters so far)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Items
from functools import lru_cache

from .char_dfa import Trimmed
from .code_points import CodePoints
from .errors import GrammarLimitError
from .rules import StateGraph
from .slices import LANE_CHARACTERS, MOST_COVERED

_MAX_WORK = 10_000_000
_MOST_SLACKS = 100_000
Edges = tuple[tuple[tuple[int, int], ...], ...]  # for each state, (body, state after it)


class Lengths:
    """From which states an end is exactly k bodies away, for every k: a sequence that repeats itself in the end."""

    def __init__(self, edges: Edges, accepting: Items[bool], high: int | None) -> None:
        """Counts up to `high` matter.

        Raises:
            GrammarLimitError: the sequence repeats itself too late.
        """
        after = [sum({1 << target for _, target in row}) for row in edges]
        here = sum(1 << state for state, end in enumerate(accepting) if end)
        seen: dict[int, int] = {}
        levels: list[int] = []
        while here not in seen and (high is None or len(levels) <= high):
            if (len(levels) + 1) * (len(edges) + 1) > _MAX_WORK:
                raise GrammarLimitError("the lengths of a set of strings repeat too late")
            seen[here] = len(levels)
            levels.append(here)
            here = sum(1 << state for state, targets in enumerate(after) if targets & here)
        self.stop = len(levels)
        self.loop = seen.get(here, self.stop)  # levels from here to `stop` repeat
        self.period = self.stop - self.loop
        self._counts = [_transposed(levels, state) for state in range(len(edges))]

    def least(self, state: int, low: int, high: int | None) -> int | None:
        """The least k in `low` to `high` for which an end is k bodies from `state`."""
        start = low
        if start >= self.stop:
            if not self.period:
                return None
            start = self.loop + (low - self.loop) % self.period
        found = _lowest(self._counts[state] >> start)
        if found is None:  # go round once more
            found = _lowest(self._counts[state] >> self.loop) if self.period else None
            found = None if found is None else found + self.stop - start
        return None if found is None or (high is not None and low + found > high) else low + found


def _lowest(bits: int) -> int | None:
    return (bits & -bits).bit_length() - 1 if bits else None


def _transposed(levels: list[int], state: int) -> int:
    digits = "".join("1" if level >> state & 1 else "0" for level in reversed(levels))
    return int(digits, 2)


class LengthGraph(StateGraph):
    """The texts of `automaton` of `low` to `high` characters.

    A state is (state of the automaton, characters so far, which stand at `low` where there is no upper bound and more
    make no difference).
    """

    def __init__(self, automaton: Trimmed, low: int, high: int | None) -> None:
        """
        Raises:
            GrammarLimitError: the lengths are too irregular to be followed exactly.
        """
        bodies: dict[CodePoints, int] = {}
        self._edges: Edges = tuple(
            tuple((bodies.setdefault(chars, len(bodies)), target) for chars, target in row) for row in automaton.edges
        )
        self.bodies = tuple(bodies)
        self._accepting = automaton.accepting
        self._low, self._high = low, high
        self._lengths = Lengths(self._edges, self._accepting, high)
        self._costs: dict[tuple[float, ...], _Costs] = {}
        self._last: tuple[Items[float], _Costs] | None = None
        self._covers: list[list[int]] | None = None
        self._slack: int | None = None
        self._furthest = self._lengths.stop  # an end that is near at all is at most so far

    def is_empty(self) -> bool:
        """Whether there is no such text."""
        return not self._is_live(0, 0)

    def edges(self, state: Hashable) -> Iterable[tuple[int, Hashable]]:
        """What may follow, without dead ends."""
        here, count = _state(state)
        if count == self._high:
            return
        following = count + 1 if self._high is not None else min(count + 1, self._low)
        for body, target in self._edges[here]:
            if self._is_live(target, following):
                yield body, (target, following)

    def ends(self, state: Hashable) -> bool:
        """Whether the text may end."""
        here, count = _state(state)
        return self._accepting[here] and count >= self._low

    def cost(self, state: Hashable, costs: Items[float]) -> float:
        """The least sum of `costs` to an end."""
        last = self._last
        if last is not None and last[0] is costs:
            found = last[1]
        else:
            key = tuple(costs)
            if key not in self._costs:
                self._costs[key] = _Costs(self._edges, self._accepting, self._low, self._high, key, self._lengths)
            found = self._costs[key]
            self._last = costs, found
        return found.of(*_state(state))

    def near(self, state: Hashable, horizon: int) -> Hashable:
        """Counts that are far from both bounds are taken for others that are, too."""
        here, count = _state(state)
        if count >= self._low:
            if self._high is None:
                return here, self._low
            return here, max(count, self._low, self._high - horizon - self._furthest)
        missing = self._low - count
        lengths = self._lengths
        least = horizon + lengths.loop
        if lengths.period and missing > least + lengths.period:
            missing = least + 1 + (missing - least - 1) % lengths.period
        return here, self._low - missing

    def cover(self, state: Hashable) -> Items[int]:
        """As far as no character leads where no edge takes it, and no length where it cannot end in time."""
        here, count = _state(state)
        if self._covers is None:
            self._covers = [self._distances(lane) for lane in LANE_CHARACTERS]
            self._slack = self._most_slack()
        if self._slack is None:
            return ()
        room = MOST_COVERED
        if self._high is not None:
            room = min(room, self._high - self._slack - count)
            if self._low + self._slack > self._high:
                return ()
        return [max(0, min(room, distances[here])) for distances in self._covers]

    def _distances(self, lane: CodePoints) -> list[int]:
        """For each state, characters of `lane` that surely may follow: its distance to where one may not."""
        inside = [_size(chars & lane) for chars in self.bodies]
        before: list[list[int]] = [[] for _ in self._edges]
        found = [MOST_COVERED] * len(self._edges)
        todo = []
        for state, row in enumerate(self._edges):
            for body, target in row:
                if inside[body]:
                    before[target].append(state)
            if sum(inside[body] for body, _ in row) < _size(lane):
                found[state] = 0
                todo.append(state)
        for state in todo:  # grows while it is walked: breadth first
            for earlier in before[state]:
                if found[earlier] == MOST_COVERED:
                    found[earlier] = min(MOST_COVERED - 1, found[state] + 1)
                    todo.append(earlier)
        return found

    def _most_slack(self) -> int | None:
        """How many characters beyond those still missing the nearest end is at most; None where that is not known."""
        if len(self._edges) * (self._low + 1) > _MOST_SLACKS:
            return None
        most = 0
        for state in range(len(self._edges)):
            for missing in range(self._low + 1):
                length = self._lengths.least(state, missing, None)
                if length is None:
                    return None
                most = max(most, length - missing)
        return most

    def words(self, most: int) -> list[str] | None:
        """All the texts where there are at most `most`, else None."""
        found: list[str] = []
        todo: list[tuple[Hashable, str]] = [] if self.is_empty() else [((0, 0), "")]
        while todo:
            state, text = todo.pop()
            if self.ends(state):
                found.append(text)
            for body, target in self.edges(state):
                for low, high in self.bodies[body].ranges:
                    todo.extend((target, text + chr(code)) for code in range(low, min(high, low + most) + 1))
            if len(found) + len(todo) > most:  # from everything that is left to do, some text more comes
                return None
        return sorted(found)

    def _is_live(self, here: int, count: int) -> bool:
        most = None if self._high is None else self._high - count
        return self._lengths.least(here, max(0, self._low - count), most) is not None


def _size(chars: CodePoints) -> int:
    return sum(high - low + 1 for low, high in chars.ranges)


def _state(state: Hashable) -> tuple[int, int]:
    assert isinstance(state, tuple)
    return state


class _Costs:
    """Least costs to an end, for one list of costs of the bodies.

    Threads may share it: the rows of a table follow from each other, so whoever writes one again writes the same.
    """

    def __init__(
        self,
        edges: Edges,
        accepting: Items[bool],
        low: int,
        high: int | None,
        costs: tuple[float, ...],
        lengths: Lengths,
    ) -> None:
        self._edges: list[list[tuple[float, int]]] = [
            [(costs[body], target) for body, target in row if costs[body] < math.inf] for row in edges
        ]
        self._low, self._high = low, high
        self._window = None if high is None else high - low
        distinct = {cost for row in self._edges for cost, _ in row}
        self._each = distinct.pop() if len(distinct) == 1 else None
        self._lengths = lengths
        if self._each is not None and math.inf in costs:
            left = tuple(tuple(edge for edge in row if costs[edge[0]] < math.inf) for row in edges)
            self._lengths = Lengths(left, accepting, high)
        self._free = {0: [0.0 if end else math.inf for end in accepting]}  # [w]: with at most w bodies
        self._owed: dict[int, list[float]] = {}  # [a]: with at least a bodies, and the window after them
        self._settled: int | None = None  # from which row on `_free` stays the same

    def of(self, here: int, count: int) -> float:
        """The least cost from `here` after `count` characters."""
        if self._each is not None:
            most = None if self._high is None else self._high - count
            found = self._lengths.least(here, max(0, self._low - count), most)
            return math.inf if found is None else found * self._each
        if count > self._low and self._high is not None:
            return self._within(self._high - count)[here]
        return self._at_least(max(0, self._low - count))[here]

    def _within(self, most: int | None) -> list[float]:
        row = len(self._free) - 1
        while self._settled is None and (most is None or row < most):
            last = self._free[row]
            following = [
                min(first, cheapest) for first, cheapest in zip(self._free[0], self._before(last), strict=True)
            ]
            if following == last:
                self._settled = row
            else:
                row += 1
                self._add(self._free, row, following)
        last_row = len(self._free) - 1 if self._settled is None else self._settled
        return self._free[last_row if most is None else min(most, last_row)]

    def _at_least(self, least: int) -> list[float]:
        if not self._owed:
            self._owed[0] = self._within(self._window)
        row = len(self._owed) - 1
        while row < least:
            shift = self._shift(row)
            if shift is not None:
                return [cost + shift * (least - row) for cost in self._owed[row]]
            row += 1
            self._add(self._owed, row, self._before(self._owed[row - 1]))
        return self._owed[least]

    def _shift(self, row: int) -> float | None:
        """What every cost grew by up to `row`, if they all grew alike: then they always will."""
        if row == 0:
            return None
        grown: set[float] = set()
        for before, now in zip(self._owed[row - 1], self._owed[row], strict=True):
            if math.inf not in (before, now):
                grown.add(now - before)
            elif before != now:
                return None
        return grown.pop() if len(grown) == 1 else None

    def _before(self, costs: list[float]) -> list[float]:
        return [min((cost + costs[target] for cost, target in row), default=math.inf) for row in self._edges]

    def _add(self, table: dict[int, list[float]], index: int, row: list[float]) -> None:
        table[index] = row
        if index * len(row) > _MAX_WORK:
            raise GrammarLimitError("the lengths of a set of strings are too irregular to be followed exactly")


@lru_cache(maxsize=512)
def length_graph(automaton: Trimmed, low: int, high: int | None) -> LengthGraph:
    """The one `LengthGraph` of an automaton and its bounds, which keeps what it found out."""
    return LengthGraph(automaton, low, high)
