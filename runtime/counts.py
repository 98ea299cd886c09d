"""What a scheduler has done so far, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from .request import Request


class Totals(TypedDict):
    """Fields of `SchedulerStats`."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    forced_tokens: int
    finished: int
    failed: int
    aborted: int
    working_s: float
    device_s: float


class SchedulerCounts:
    """Counts requests when they begin to run and when they end, the rows of steps, and the time of the device.

    Attributes:
        working_s, device_s: time with work to do, and how much of it the device computed.
        launched_rows: of all steps that were launched.
    """

    def __init__(self) -> None:
        self.working_s = 0.0
        self.device_s = 0.0
        self.launched_rows = 0
        self._finished_step = self._finished_rows = 0
        self._prompt_tokens = self._cached_tokens = 0
        self._output_tokens = self._forced_tokens = 0
        self._ends = {"finished": 0, "failed": 0, "aborted": 0}

    def started(self, request: Request) -> None:
        """A request runs for the first time, in the step that is launched next."""
        request.rows_before = self.launched_rows
        self._prompt_tokens += len(request.prompt_ids)
        self._cached_tokens += request.cached_tokens

    def finished(self, step: int, rows: int, device_s: float) -> None:
        """The oldest step in flight is done."""
        self._finished_step = step
        self._finished_rows += rows
        self.device_s += device_s

    def ended(self, request: Request) -> None:
        """A request has ended in one of the three ways, in the step that is done last if it ran."""
        if 0 < request.first_step <= self._finished_step:
            request.last_step, request.rows_at_end = self._finished_step, self._finished_rows
        self._ends[request.status] += 1
        self._output_tokens += request.num_output
        self._forced_tokens += request.forced

    def totals(self, running: Iterable[Request]) -> Totals:
        """Everything so far, what `running` have generated included."""
        outputs = [(request.num_output, request.forced) for request in running]
        return Totals(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens + sum(output for output, _ in outputs),
            forced_tokens=self._forced_tokens + sum(forced for _, forced in outputs),
            finished=self._ends["finished"],
            failed=self._ends["failed"],
            aborted=self._ends["aborted"],
            working_s=self.working_s,
            device_s=self.device_s,
        )
