"""The requests that wait for room, and who of them begins to run in a step."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .config import Policy
from .kv_memory import KVMemory
from .policy import AdmissionBudget, OutputEstimate, awaits_shared_prefix, queue_policy
from .request import Request
from .running_batch import RunningBatch
from .step_builder import Row


@dataclass(frozen=True, slots=True)
class Admission:
    """What one step admits.

    Attributes:
        rows: of the requests that begin to run; their pages are reserved.
        too_large: requests that do not fit even alone; they still wait.
    """

    rows: list[Row] = field(default_factory=list)
    too_large: list[Request] = field(default_factory=list)


class WaitingQueue:
    """Waiting requests, oldest first. A retracted request is as old as when it came.

    Args:
        estimate: of the output that is still to come, for what may be admitted beside it.
    """

    def __init__(self, policy: Policy, memory: KVMemory, running: RunningBatch, estimate: OutputEstimate) -> None:
        self._policy = queue_policy(policy, memory)
        self._memory = memory
        self._running = running
        self._estimate = estimate
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=_arrival)

    def discard(self, request: Request) -> None:
        """Take a request off the queue if it is there."""
        place = bisect.bisect_left(self._requests, request.arrival, key=_arrival)
        if place < len(self._requests) and self._requests[place] is request:
            del self._requests[place]

    def admit(self, tokens: int) -> Admission:
        """Begin to run requests in the policy's order, as far as slots, pages and `tokens` tokens of the step reach."""
        admission = Admission()
        running = self._running
        if tokens <= 0 or not self._requests or not running.free_slots:
            return admission
        budget = AdmissionBudget(
            self._memory, self._estimate, tokens=tokens, slots=running.free_slots, running=running.requests
        )
        prefilling = running.prefilling
        for request in self._policy.order(self._requests):
            if budget.is_spent or not self._offer(request, budget, prefilling, admission):
                break
        self._leave([row.request for row in admission.rows])
        return admission

    def _offer(
        self, request: Request, budget: AdmissionBudget, prefilling: list[Request], admission: Admission
    ) -> bool:
        """Admit a request if it fits; False where it must have the memory that is left before anybody behind it."""
        memory = self._memory
        match = memory.match(request)
        if match and awaits_shared_prefix(request, match.length, prefilling, memory.page_size):
            return True
        memory.attach(request, match)
        if budget.fits(request):
            admission.rows.append(self._start(request, budget))
            prefilling.append(request)
            return True
        memory.release(request)
        if budget.nothing_runs:
            admission.too_large.append(request)
        return budget.nothing_runs

    def _start(self, request: Request, budget: AdmissionBudget) -> Row:
        request.move_to("running")
        self._running.add(request)
        row = Row(request, budget.take(request))
        self._memory.reserve(request, row.count)
        return row

    def _leave(self, admitted: Sequence[Request]) -> None:
        """Take admitted requests off the queue, and count whom they overtook."""
        if not admitted:
            return
        self._requests = [request for request in self._requests if request.status == "waiting"]
        arrivals = sorted(request.arrival for request in admitted)
        for request in self._requests:
            if request.arrival > arrivals[-1]:
                break
            request.overtaken += len(arrivals) - bisect.bisect(arrivals, request.arrival)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the queue is in order and nobody in it holds a slot or pages."""
        arrivals = [request.arrival for request in self._requests]
        assert arrivals == sorted(set(arrivals))
        for request in self._requests:
            assert request.status == "waiting"
            assert request.slot == -1
            assert not len(request.page_table.pages)
            assert request.num_computed == 0


def _arrival(request: Request) -> int:
    return request.arrival
