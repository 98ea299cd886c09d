"""How many requests may wait, and when one that is refused may be tried again."""

from __future__ import annotations

import statistics
from collections import deque

from .errors import QueueFullError

LATELY = 256
"""The wait of so many requests that began last tells how long the queue takes."""

LEAST_RETRY_S = 1.0
MOST_RETRY_S = 60.0


class QueueLimit:
    """Refuses requests where too many wait.

    Args:
        most: requests that may wait, for room or for their grammar.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waits: deque[float] = deque(maxlen=LATELY)

    @property
    def retry_after_s(self) -> float:
        """The median wait of those that began lately, and from 1 to 60 s: that is when one place is free by far."""
        wait_s = statistics.median(self._waits) if self._waits else LEAST_RETRY_S
        return min(MOST_RETRY_S, max(LEAST_RETRY_S, wait_s))

    def check(self, waiting: int) -> None:
        """Refuse one more request where `waiting` are as many as may wait.

        Raises:
            QueueFullError: it says when to try again.
        """
        if waiting >= self._most:
            retry_after_s = self.retry_after_s
            raise QueueFullError(
                f"the queue is full: {waiting} requests wait, and at most {self._most} may; try again in"
                f" {retry_after_s:.0f} s, or start the engine with a larger max_queued_requests",
                retry_after_s=retry_after_s,
            )

    def begun(self, waited_s: float) -> None:
        """Note how long a request that now begins has waited."""
        self._waits.append(waited_s)
