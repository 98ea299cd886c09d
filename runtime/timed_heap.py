"""Requests by a moment of theirs: whose has come?"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from .request import Request

_SLACK = 64


class TimedHeap:
    """Requests and moments, the earliest first. Those that no longer matter are dropped when they come up, or before.

    Args:
        matters: whether a request is still of interest.
    """

    def __init__(self, matters: Callable[[Request], bool]) -> None:
        self._matters = matters
        self._serials = itertools.count()
        self._heap: list[tuple[float, int, Request]] = []
        self._rebuild_at = _SLACK

    def __len__(self) -> int:
        """Entries, those that no longer matter included: at most twice those that do and a few."""
        return len(self._heap)

    @property
    def next_s(self) -> float | None:
        """The earliest moment of a request that still matters; None where there is none."""
        while self._heap and not self._matters(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def add(self, request: Request, moment_s: float) -> None:
        """Note that something is due for the request at `moment_s`. One request may have several entries."""
        heapq.heappush(self._heap, (moment_s, next(self._serials), request))
        if len(self._heap) > self._rebuild_at:
            self._heap = [entry for entry in self._heap if self._matters(entry[2])]
            heapq.heapify(self._heap)
            self._rebuild_at = 2 * len(self._heap) + _SLACK

    def due(self, now_s: float) -> list[Request]:
        """Take off the requests whose moment is `now_s` or earlier and that still matter, the earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            _, _, request = heapq.heappop(self._heap)
            if self._matters(request):
                due.append(request)
        return due


class Deadlines:
    """Who has not ended in time. Costs nothing for requests without a deadline."""

    def __init__(self) -> None:
        self._heap = TimedHeap(_is_active)

    def add(self, request: Request) -> None:
        """Watch a request's `deadline_s`, if it has one."""
        if request.deadline_s is not None:
            self._heap.add(request, request.deadline_s)

    @property
    def next_s(self) -> float | None:
        """When the next deadline of an active request comes; None where there is none."""
        return self._heap.next_s

    def expired(self, now_s: float) -> list[Request]:
        """The active requests whose deadline has come, each once, the earliest first."""
        return self._heap.due(now_s)


def _is_active(request: Request) -> bool:
    return request.is_active
