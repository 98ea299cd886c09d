"""How much a step may admit, and how long the output of a request is expected to become."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .kv_memory import KVMemory
from .request import Request

EXPECTED_OUTPUT_LIMIT = 4096
"""Most output tokens that are planned for one request, however large its max_tokens."""

FEW = 16
"""A device that runs fewer requests has time to compute prefixes again: nobody waits for room that is promised to
others but free."""

SMALL = 8
"""A program that takes this part of the room there is begins whatever is promised to others."""


class OutputEstimate:
    """How much of its allowed output a request is expected to use.

    `ratio` follows the `QUANTILE` of what finished requests used of theirs: each one moves it a little, up where it
    used more and down where it used less, so that it rests where a quarter of them use more. The first ones move it
    far. A retraction, which shows that memory was promised to too many, raises it at once.
    """

    START = 0.7
    LOWEST = 0.02
    QUANTILE = 0.75
    MOVE = 0.05
    FIRST_MOVE = 0.5
    RISE = 0.1

    def __init__(self) -> None:
        self.ratio = self.START
        self._seen = 0

    def finished(self, request: Request) -> None:
        """Learn from a request that ended by itself; one that was aborted or failed says nothing about others."""
        if request.kind != "generate" or request.status != "finished" or request.max_output < 1:
            return
        used = min(1.0, request.num_output / min(request.max_output, EXPECTED_OUTPUT_LIMIT))
        self._seen += 1
        step = max(self.MOVE, self.FIRST_MOVE / self._seen)
        move = step * (self.QUANTILE if used > self.ratio else self.QUANTILE - 1)
        self.ratio = max(self.LOWEST, min(1.0, self.ratio + move))

    def retracted(self) -> None:
        """Learn that memory ran out."""
        self.ratio = min(1.0, self.ratio + self.RISE)

    def final_length(self, request: Request) -> int:
        """Tokens of context that the request is expected to end with."""
        if request.kind == "score":
            return request.end
        expected = math.ceil(self.ratio * min(request.tokens_left, EXPECTED_OUTPUT_LIMIT))
        return request.end + expected


class AdmissionBudget:
    """What one step may still admit. Made for the step and thrown away.

    Pages count as available when they are free or evictable and no running request is expected to need them.

    Args:
        tokens: that the step may still compute.
        slots: requests that may still begin to run.
        running: requests that run already, with the pages of this step.
    """

    def __init__(
        self, memory: KVMemory, estimate: OutputEstimate, *, tokens: int, slots: int, running: Sequence[Request]
    ) -> None:
        self._memory = memory
        self._estimate = estimate
        self._running = len(running)
        self._reserved = sum(self._expected_pages(request) for request in running)
        self.tokens = tokens
        self.slots = slots

    @property
    def is_spent(self) -> bool:
        return self.tokens <= 0 or self.slots <= 0

    @property
    def nothing_runs(self) -> bool:
        """Whether the next request would be the only one; it then needs room for what is known of it and no more."""
        return not self._running

    def fits(self, request: Request) -> bool:
        """Whether there are pages for a request whose cached prefix is locked already."""
        if self.nothing_runs:
            return self._memory.make_available(self._memory.pages_needed(request, request.end))
        memory, expected = self._memory, self._expected_pages(request)
        if request.goes_on:
            return memory.make_available(self._reserved + expected, after=request.program)
        if self._running < FEW and self._reserved + expected <= memory.available_pages:
            return True
        return self._is_small(request) or memory.make_spare(self._reserved + expected)

    def _is_small(self, request: Request) -> bool:
        """Whether its whole program is known to take so little of the room there is that nobody will miss it."""
        if request.program is not None and not request.program.kind.room.count:
            return False
        pages = max(self._expected_pages(request), self._memory.usual_pages(request))
        return self._reserved + SMALL * pages <= self._memory.available_pages

    def take(self, request: Request) -> int:
        """Admit the request; returns how many tokens of it the step computes."""
        count = min(request.remaining, self.tokens)
        pages = self._expected_pages(request)
        self._memory.expect(request, pages)
        self._reserved += pages
        self._running += 1
        self.tokens -= count
        self.slots -= 1
        return count

    def _expected_pages(self, request: Request) -> int:
        return self._memory.pages_needed(request, self._estimate.final_length(request))
