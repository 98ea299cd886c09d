"""The requests that wait for room, and who of them begins to run in a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from .admission import AdmissionBudget, OutputEstimate
from .ageing import AgeingQueue, turn
from .clock import Clock
from .config import EngineConfig
from .kv_memory import KVMemory
from .queue_limit import QueueLimit
from .queue_policies import WINDOW, queue_policy
from .request import Request
from .running_batch import RunningBatch
from .shared_prefixes import SharedPrefixes
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
    """Waiting requests, and the order in which they begin: the aged in turn, then by priority, then by the policy.

    ageing.py says what a turn is and how long a request may be passed over. A retracted request has the turn it came
    with.

    Args:
        config: policy, seed, and for how long requests may be passed over.
        estimate: of the output that is still to come, for what may be admitted beside it.
        limit: is told how long requests waited.
    """

    def __init__(
        self,
        config: EngineConfig,
        memory: KVMemory,
        running: RunningBatch,
        estimate: OutputEstimate,
        clock: Clock,
        limit: QueueLimit,
    ) -> None:
        self._policy = queue_policy(config.policy, memory, estimate, config.seed)
        self._memory = memory
        self._running = running
        self._estimate = estimate
        self._clock = clock
        self._limit = limit
        self._queue = AgeingQueue(config.max_wait_s)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def add(self, request: Request) -> None:
        self._queue.add(request)

    def discard(self, request: Request) -> None:
        """Take a request off the queue if it is there."""
        self._queue.discard(request)

    def admit(self, tokens: int) -> Admission:
        """Begin to run requests, as far as slots, pages and `tokens` tokens of the step reach."""
        admission = Admission()
        running = self._running
        if tokens <= 0 or not len(self._queue) or not running.free_slots:
            return admission
        now_s = self._clock.now()
        self._queue.grow_older(now_s)
        budget = AdmissionBudget(
            self._memory, self._estimate, tokens=tokens, slots=running.free_slots, running=running.requests
        )
        computing = SharedPrefixes(self._memory.page_size, running.prefilling)
        blocked: Request | None = None
        for request in self._ordered():
            if budget.is_spent:
                break
            if blocked is not None and not (request.goes_on and turn(request) < turn(blocked)):
                continue
            if not self._offer(request, budget, computing, admission):
                if request.goes_on:
                    break
                blocked = request
        self._begin([row.request for row in admission.rows], now_s)
        return admission

    def _ordered(self) -> Iterator[Request]:
        """The requests that a step may admit, best first. Found out as far as they are asked for."""
        aged = self._queue.aged[:WINDOW]
        yield from aged
        if len(aged) == WINDOW:
            return
        head = self._queue.young(WINDOW)
        head.sort(key=_priority, reverse=True)
        for _, level in groupby(head, key=_priority):
            yield from self._policy.order(list(level))

    def _offer(
        self, request: Request, budget: AdmissionBudget, computing: SharedPrefixes, admission: Admission
    ) -> bool:
        """Admit a request if it fits; False where it must have the memory that is left before anybody behind it."""
        memory = self._memory
        match = memory.match(request)
        if match and self._holds(request, computing.worth_waiting(request, match.length)):
            return True
        memory.attach(request, match)
        if budget.fits(request):
            admission.rows.append(self._start(request, budget))
            computing.add(request)
            return True
        memory.release(request)
        if budget.nothing_runs:
            admission.too_large.append(request)
        return budget.nothing_runs

    def _holds(self, request: Request, other: Request | None) -> bool:
        """Whether a request lets others go first until `other` has computed a prefix for it. An aged one does so once.

        If it began at once it would compute that prefix itself, and others would begin beside it all the same.
        """
        if request.aged and request.waits_for is None:
            request.waits_for = other
        return other is not None and (not request.aged or request.waits_for is other)

    def _start(self, request: Request, budget: AdmissionBudget) -> Row:
        request.move_to("running")
        request.waits_for = None
        self._running.add(request)
        row = Row(request, budget.take(request))
        self._memory.reserve(request, row.count)
        return row

    def _begin(self, requests: list[Request], now_s: float) -> None:
        self._queue.begun(requests, now_s)
        for request in requests:
            if request.started_s is None:
                self._limit.begun(now_s - request.arrived_s)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the queue is in order and nobody in it holds a slot or pages."""
        self._queue.check_invariants()
        for request in self._queue:
            assert request.status == "waiting"
            assert request.slot == -1
            assert not len(request.page_table.pages)
            assert request.num_computed == 0


def _priority(request: Request) -> int:
    return request.priority
