"""Actions in the order of their time, on one thread that lives while there are any, and a little longer."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

_LINGER_S = 1.0


class Timeline:
    """Runs actions one at a time, the earliest first, equally early ones in the order they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._working = False

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` in `delay_s` seconds. It must not raise."""
        with self._changed:
            heapq.heappush(self._actions, (time.monotonic() + delay_s, next(self._order), action))
            self._changed.notify()
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="palmette-mock", daemon=True).start()

    def _work(self) -> None:
        while (action := self._next()) is not None:
            action()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next action; None, and the thread ends, when none has come for a while."""
        with self._changed:
            while self._actions or self._changed.wait(_LINGER_S):
                wait_s = self._actions[0][0] - time.monotonic() if self._actions else 0.0
                if wait_s > 0:
                    self._changed.wait(wait_s)
                elif self._actions:
                    return heapq.heappop(self._actions)[2]
            self._working = False
            return None
