"""The requests that run: their slots, and which of their tokens a step computes."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from .ageing import turn
from .kv_memory import KVMemory
from .request import Request
from .step_builder import Row


class RunningBatch:
    """The running requests, in turn (see ageing.py). Each has a slot of the runner's and its pages.

    Args:
        slots: most requests that may run at once.
    """

    def __init__(self, memory: KVMemory, slots: int) -> None:
        self._memory = memory
        self._requests: list[Request] = []
        self._max_slots = slots
        self._free_slots = list(range(slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def requests(self) -> Sequence[Request]:
        return self._requests

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def prefilling(self) -> list[Request]:
        return [request for request in self._requests if request.prefilling]

    @property
    def last(self) -> Request:
        """Who gives way where memory is short: whose turn comes last, so that the first always gets on."""
        return self._requests[-1]

    def add(self, request: Request) -> None:
        """Begin to run a request whose cached prefix is attached."""
        request.slot = self._free_slots.pop()
        request.prefill_end = request.end
        request.setup_due = request.kind == "generate"
        bisect.insort(self._requests, request, key=turn)

    def remove(self, request: Request) -> None:
        """Stop running a request, whatever the reason; its slot and pages come back."""
        self._requests.remove(request)
        request.drop_flight()
        self._free_slots.append(request.slot)
        request.slot = -1
        self._memory.release(request)

    def rows(self, tokens: int) -> list[Row] | None:
        """Rows of the step for what runs already, with their pages: decodes first, then prefills, each in turn.

        Args:
            tokens: most tokens of all rows.

        Returns:
            None, with nothing changed, where memory is short: some decode of this step would lack a page, or no request
            at all could go on. What is in flight may still make room.
        """
        rows: list[Row] = []
        for request in self._requests:
            if tokens and request.next_start >= request.prefill_end and (count := request.next_tokens):
                row = Row(request, min(count, tokens))
                rows.append(row)
                tokens -= row.count
        needs = self._needs(rows)
        if not self._memory.make_available(sum(pages for _, pages in needs)):
            return None
        self._memory.hand_out(needs)
        rows += self._prefill_rows(tokens)
        return rows if rows or not any(request.next_tokens for request in self._requests) else None

    def _needs(self, decodes: Sequence[Row]) -> list[tuple[Request, int]]:
        """The pages that rows lack. One of a single token has its page, unless that is the first token of one."""
        memory = self._memory
        size = memory.page_size
        return [
            (row.request, memory.pages_needed(row.request, row.stop))
            for row in decodes
            if row.count > 1 or row.start % size == 0
        ]

    def _prefill_rows(self, tokens: int) -> list[Row]:
        rows = []
        for request in self._requests:
            if request.next_start >= request.prefill_end:
                continue
            count = min(request.next_tokens, tokens)
            self._memory.make_available(self._memory.pages_needed(request, request.next_start + count))
            count = min(count, self._memory.room(request))
            if count > 0:
                self._memory.reserve(request, count)
                rows.append(Row(request, count))
                tokens -= count
        return rows

    def check_invariants(self) -> None:
        """Raise AssertionError unless every running request has a slot of its own."""
        used = [request.slot for request in self._requests]
        assert sorted(used + self._free_slots) == list(range(self._max_slots))
        assert all(request.status == "running" for request in self._requests)
        assert all(request.remaining > 0 for request in self._requests)
        assert all(request.end == len(request.token_ids) for request in self._requests)
        assert self._requests == sorted(self._requests, key=turn)
