"""Objects whose members are counted, needed by value or in any order, as a graph whose states are made when reached."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

from .rules import StateGraph

COMMA_BODY = 0
"""Index of the body that is a comma."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member may come.

    Attributes:
        bodies: (index of a body, mask of the needs that it meets), one of which is written.
        required: whether it must come.
    """

    bodies: tuple[tuple[int, int], ...]
    required: bool


class ObjectState(NamedTuple):
    """What was written.

    Attributes:
        done: mask of the named members that are written, or that may not come any more.
        number: how many members are written, as far as it matters.
        needs: mask of the needs that are met.
        after: "{", "member" or ",", what came last.
    """

    done: int
    number: int
    needs: int
    after: str


@dataclass(frozen=True, slots=True)
class ObjectGraph(StateGraph):
    """Members and the commas between them.

    Attributes:
        named: the members that come at most once, in order.
        others: bodies of the members that may come any number of times, with the needs that they meet.
        needs: mask of all needs.
        low: how many members there are at least.
        high: and at most; None is no bound.
        in_order: whether named members come in their order, before the others.
    """

    named: tuple[Place, ...]
    others: tuple[tuple[int, int], ...]
    needs: int
    low: int
    high: int | None
    in_order: bool

    def start(self) -> ObjectState:
        """The state after the opening brace."""
        return ObjectState(0, 0, 0, "{")

    def edges(self, state: Hashable) -> Iterable[tuple[int, Hashable]]:
        """See `StateGraph`."""
        here = cast("ObjectState", state)
        if here.after == "member":
            if self.high is None or here.number < self.high:
                yield COMMA_BODY, here._replace(after=",")
            return
        if self.high is not None and here.number >= self.high:
            return
        most = max(self.low, self.high or 0)
        count = min(here.number + 1, most)
        blocked = False
        for index, place in enumerate(self.named):
            if here.done >> index & 1:
                continue
            done = here.done | ((2 << index) - 1 if self.in_order else 1 << index)
            for body, needs in place.bodies:
                yield body, ObjectState(done, count, here.needs | needs, "member")
            if self.in_order and place.required:
                blocked = True
                break
        if not blocked:
            done = (1 << len(self.named)) - 1 if self.in_order else here.done
            for body, needs in self.others:
                yield body, ObjectState(done, count, here.needs | needs, "member")

    def ends(self, state: Hashable) -> bool:
        """See `StateGraph`."""
        here = cast("ObjectState", state)
        return (
            here.after != ","
            and here.number >= self.low
            and here.needs == self.needs
            and not any(place.required and not here.done >> index & 1 for index, place in enumerate(self.named))
        )

    def cost(self, state: Hashable, costs: Sequence[float]) -> float:
        """See `StateGraph`."""
        return _cost(self, cast("ObjectState", state), tuple(costs))


@lru_cache(maxsize=100_000)
def _cost(graph: ObjectGraph, state: ObjectState, costs: tuple[float, ...]) -> float:
    """The least cost of what must still come: over how many members come, and which needs they meet."""
    left = [place for index, place in enumerate(graph.named) if not state.done >> index & 1]
    required = sum(place.required for place in left)
    missing = graph.needs & ~state.needs
    least = max(graph.low - state.number, required, 1 if state.after == "," else 0)
    most = least + missing.bit_count()
    if graph.high is not None:
        most = min(most, graph.high - state.number)
    best: dict[tuple[int, int], float] = {(0, missing): 0.0}
    for place in left:
        best = _with_place(best, place, costs, most)
    best = _with_others(best, graph.others, costs, most)
    comma = costs[COMMA_BODY]
    result = math.inf
    for (count, needs), cost in best.items():
        if not needs and least <= count <= most:
            commas = count - (state.after != "member") if count else 0
            result = min(result, cost + (commas * comma if commas else 0.0))
    return result


_Costs = dict[tuple[int, int], float]


def _with_place(best: _Costs, place: Place, costs: tuple[float, ...], most: int) -> _Costs:
    new: _Costs = {} if place.required else dict(best)
    for (count, needs), cost in best.items():
        if count == most:
            continue
        for body, met in place.bodies:
            key = (count + 1, needs & ~met)
            total = cost + costs[body]
            if total < new.get(key, math.inf):
                new[key] = total
    return new


def _with_others(best: _Costs, others: tuple[tuple[int, int], ...], costs: tuple[float, ...], most: int) -> _Costs:
    new = dict(best)
    for count in range(most):
        for (before, needs), cost in list(new.items()):
            if before != count:
                continue
            for body, met in others:
                key = (count + 1, needs & ~met)
                total = cost + costs[body]
                if total < new.get(key, math.inf):
                    new[key] = total
    return new
