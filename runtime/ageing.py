"""Whose turn it is, and when a waiting request may no longer be passed over.

**Turns.** A request's turn comes in the order of arrival, where a level of priority counts as having come
`PRIORITY_S` earlier. A later call of a program that has begun counts as having come `HEAD_START_S` before the program
did, but no more than twice that before the call itself: what has begun goes on before anything else begins. Policies
admit requests out of turn, to use what is cached and to end programs soon. A waiting request is *passed over* when one
whose turn comes later begins to run. Where memory runs short, the running request whose turn comes last gives its pages
back and waits again.

**The bound.** From `max_wait_s` after a request was first passed over it is *aged*, and no request whose turn comes
later begins before it: aged requests go first, in turn, and while the first of them does not fit nothing is admitted
but later calls of programs whose turn comes before. There is one exception: where a running request is just computing
a prefix of it, it lets others go first until that is done, once. (If it began at once it would compute that prefix
itself, and others would begin beside it.) So it waits no longer than

- the work ahead of it takes: what ran when it came, what waited whose turn came before, and the later calls whose turn
  does. Those are of programs that came no more than `HEAD_START_S` after it and began before it did, and they come in
  the first `2 * HEAD_START_S` after it,
- `max_wait_s`, in which it is passed over,
- the time in which one running request computes a prefix for it,
- and what is left, at the end of these, of the runs of those that passed it: they keep their slots and pages.

All of that is for one priority: a level is `PRIORITY_S` more or less. Before it is first passed over, and after it has
aged, only work ahead of it is admitted. The room that is promised to programs in progress is an estimate, but no part
of the bound: when the work ahead is done nothing runs, and then the first request begins whatever is promised or kept.
Every request ages in the end, since requests of any priority, and calls of any program, that come later than their head
start come after it. A retracted request keeps its turn and its age.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .request import Request

_NOBODY = (float("-inf"), 0)
_SLACK = 64

PRIORITY_S = 60.0
"""A level of priority is worth so many seconds of waiting."""


def turn(request: Request) -> tuple[float, int]:
    """The order in which requests would begin if nobody were passed over."""
    return request.turn_s - PRIORITY_S * request.priority, request.arrival


@dataclass(slots=True)
class _Passing:
    """Requests that were first passed over at one moment, in turn; some may wait no more."""

    at_s: float
    requests: list[Request]


class AgeingQueue:
    """Waiting requests in three stages, each in turn: nobody has passed them; somebody has; they are aged.

    A request goes through the stages once, so that a step costs what changes and not how many wait.

    Args:
        max_wait_s: how long a request may be passed over.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._fresh: list[Request] = []
        self._passed: list[Request] = []
        self._aged: list[Request] = []
        self._passings: list[_Passing] = []  # of _passed, the earliest first
        self._noted = 0  # requests in _passings

    def __len__(self) -> int:
        return len(self._fresh) + len(self._passed) + len(self._aged)

    def __iter__(self) -> Iterator[Request]:
        return itertools.chain(self._aged, self._passed, self._fresh)

    @property
    def aged(self) -> Sequence[Request]:
        """The requests that nobody may pass any more, in turn."""
        return self._aged

    def young(self, limit: int) -> list[Request]:
        """Up to `limit` of those that are not aged, the first in turn."""
        if not self._passed:
            return self._fresh[:limit]
        return sorted(self._passed[:limit] + self._fresh[:limit], key=turn)[:limit]

    def add(self, request: Request) -> None:
        """Take in a waiting request, a retracted one too."""
        bisect.insort(self._stage(request), request, key=turn)
        if request.passed_s is not None and not request.aged:
            bisect.insort(self._passings, _Passing(request.passed_s, [request]), key=_moment)
            self._noted += 1

    def discard(self, request: Request) -> None:
        """Take a request off if it is there."""
        stage = self._stage(request)
        place = bisect.bisect_left(stage, turn(request), key=turn)
        if place < len(stage) and stage[place] is request:
            del stage[place]

    def grow_older(self, now_s: float) -> None:
        """Have those age that were first passed over `max_wait_s` ago or earlier."""
        due = bisect.bisect_right(self._passings, now_s - self._max_wait_s, key=_moment)
        for passing in self._passings[:due]:
            self._noted -= len(passing.requests)
            for request in passing.requests:
                request.aged = request.status == "waiting"
        if due:
            del self._passings[:due]
            self._aged = sorted(self._aged + [r for r in self._passed if r.aged], key=turn)
            self._passed = [request for request in self._passed if not request.aged]

    def begun(self, requests: Iterable[Request], now_s: float) -> None:
        """Take off requests that begin to run, and note whom they pass."""
        last = _NOBODY
        for request in requests:
            self.discard(request)
            last = max(last, turn(request))
        count = bisect.bisect_left(self._fresh, last, key=turn)
        if count:
            self._pass(self._fresh[:count], now_s)
            del self._fresh[:count]

    def _pass(self, requests: list[Request], now_s: float) -> None:
        for request in requests:
            request.passed_s = now_s
        self._passed += requests
        self._passed.sort(key=turn)
        self._passings.append(_Passing(now_s, requests))
        self._noted += len(requests)
        if self._noted > 2 * len(self._passed) + _SLACK:
            for passing in self._passings:
                passing.requests = [request for request in passing.requests if request.status == "waiting"]
            self._passings = [passing for passing in self._passings if passing.requests]
            self._noted = sum(len(passing.requests) for passing in self._passings)

    def _stage(self, request: Request) -> list[Request]:
        return self._aged if request.aged else self._fresh if request.passed_s is None else self._passed

    def check_invariants(self) -> None:
        """Raise AssertionError unless every request is where its age and turn put it."""
        for stage in (self._fresh, self._passed, self._aged):
            turns = [turn(request) for request in stage]
            assert turns == sorted(set(turns))
            assert all(self._stage(request) is stage for request in stage)
        moments = [passing.at_s for passing in self._passings]
        assert moments == sorted(moments)
        noted = [request for passing in self._passings for request in passing.requests]
        assert self._noted == len(noted) <= 2 * len(self._passed) + 2 * _SLACK + 256
        assert {id(request) for request in self._passed} <= {id(request) for request in noted}


def _moment(passing: _Passing) -> float:
    return passing.at_s
