"""When the nodes of a session ran, for backends whose engine does not say: by this machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from palmette.runtime.program import Delta, Event, Failed, Generated, Selected, Timings


class SessionClock:
    """Times the nodes of one session; begins with it. Not thread-safe.

    Args:
        now: the time in seconds, from whenever.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._opened_s = now()
        self._begun: dict[int, float] = {}
        self._first_tokens: dict[int, float] = {}

    def begin(self, node_id: int) -> None:
        """A node is asked for."""
        self._begun[node_id] = self._now() - self._opened_s

    def timed(self, event: Event) -> Event:
        """The event, with timings where a node is done. Streamed text says when its first token came."""
        now_s = self._now() - self._opened_s
        if isinstance(event, Delta):
            self._first_tokens.setdefault(event.node, now_s)
            return event
        start_s = self._begun.pop(event.node, now_s)
        first_s = self._first_tokens.pop(event.node, None)
        if isinstance(event, Failed):
            return event
        timings = Timings(
            start_s=start_s, end_s=now_s, first_token_s=None if first_s is None else max(0.0, first_s - start_s)
        )
        return _with_timings(event, timings)


def _with_timings(event: Generated | Selected, timings: Timings) -> Generated | Selected:
    if isinstance(event, Selected):
        return msgspec.structs.replace(event, timings=timings, elapsed_s=event.elapsed_s or timings.elapsed_s)
    completions = tuple(msgspec.structs.replace(each, timings=timings) for each in event.completions)
    return msgspec.structs.replace(event, completions=completions, elapsed_s=event.elapsed_s or timings.elapsed_s)
