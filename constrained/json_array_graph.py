"""Arrays some of whose elements are counted, as a graph whose states are made when they are reached."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

from .rules import StateGraph

COMMA_BODY = 0
"""Index of the body that is a comma."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How many elements are counted: `low` to `high`, None being no bound."""

    low: int
    high: int | None

    def after(self, count: int) -> int:
        """`count` and one more, as far as it matters; above `high`, one too many."""
        return min(count + 1, self.low if self.high is None else self.high + 1)

    def fits(self, count: int) -> bool:
        """Whether `count` is not too many."""
        return self.high is None or count <= self.high


class ArrayState(NamedTuple):
    """What was written: elements as far as their place matters, as far as their number does, and those counted."""

    place: int
    number: int
    counts: tuple[int, ...]
    after: str


@dataclass(frozen=True, slots=True)
class ArrayGraph(StateGraph):
    """Elements and the commas between them.

    Attributes:
        places: for each index, and at last for all others, the bodies with a mask of the counts they add to.
        length: of the array.
        bounds: of what is counted.
    """

    places: tuple[tuple[tuple[int, int], ...], ...]
    length: Bound
    bounds: tuple[Bound, ...]

    def start(self) -> ArrayState:
        """The state after the opening bracket."""
        return ArrayState(0, 0, (0,) * len(self.bounds), "[")

    def edges(self, state: Hashable) -> Iterable[tuple[int, Hashable]]:
        """See `StateGraph`."""
        here = cast("ArrayState", state)
        count = self.length.after(here.number)
        if not self.length.fits(count):
            return
        if here.after == "element":
            yield COMMA_BODY, here._replace(after=",")
            return
        place = min(here.place + 1, len(self.places) - 1)
        for body, mask in self.places[here.place]:
            counts = tuple(
                bound.after(old) if mask >> index & 1 else old
                for index, (bound, old) in enumerate(zip(self.bounds, here.counts, strict=True))
            )
            if all(bound.fits(new) for bound, new in zip(self.bounds, counts, strict=True)):
                yield body, ArrayState(place, count, counts, "element")

    def ends(self, state: Hashable) -> bool:
        """See `StateGraph`."""
        here = cast("ArrayState", state)
        enough = all(count >= bound.low for count, bound in zip(here.counts, self.bounds, strict=True))
        return here.after != "," and here.number >= self.length.low and enough

    def cost(self, state: Hashable, costs: Sequence[float]) -> float:
        """See `StateGraph`."""
        return _costs(self, tuple(costs)).get(state, math.inf)

    def size(self) -> int:
        """A bound on the number of its states."""
        size = 2 * len(self.places)
        for bound in (self.length, *self.bounds):
            size *= (bound.low if bound.high is None else bound.high) + 2
        return size


@lru_cache(maxsize=256)
def _costs(graph: ArrayGraph, costs: tuple[float, ...]) -> dict[Hashable, float]:
    """The least cost to an end, of every state from which there is one. Source: Dijkstra, 1959."""
    states, before = _reached(graph)
    best: dict[Hashable, float] = {}
    queue = [(0.0, number) for number, state in enumerate(states) if graph.ends(state)]
    heapq.heapify(queue)
    while queue:
        cost, number = heapq.heappop(queue)
        if states[number] in best:
            continue
        best[states[number]] = cost
        for body, source in before.get(number, ()):
            if costs[body] < math.inf and states[source] not in best:
                heapq.heappush(queue, (cost + costs[body], source))
    return best


@lru_cache(maxsize=256)
def _reached(graph: ArrayGraph) -> tuple[list[Hashable], dict[int, list[tuple[int, int]]]]:
    """All states, and by the number of each, (body, number of the state before) of the edges into it."""
    numbers: dict[Hashable, int] = {graph.start(): 0}
    states: list[Hashable] = [graph.start()]
    before: dict[int, list[tuple[int, int]]] = {}
    for state in states:  # grows while it is walked
        for body, after in graph.edges(state):
            number = numbers.get(after)
            if number is None:
                number = numbers[after] = len(states)
                states.append(after)
            before.setdefault(number, []).append((body, numbers[state]))
    return states, before
