"""Drives a scheduler: takes messages in, runs steps, and sends out what came of them.

`normal_loop` runs one step after the other. `overlap_loop` has the next step planned and launched before the one before
it is processed, so that the device finds its next work waiting: while it computes step N+1, the host processes the
tokens of step N, sends them out, receives, and plans step N+2. Tokens that the host does not know yet stay on the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .clock import Clock, MonotonicClock
from .errors import RequestAbortedError
from .intake import Intake
from .messages import (
    AbortRequest,
    Answer,
    DropPrefixes,
    EndProgram,
    FromScheduler,
    NewRequest,
    Question,
    RequestOutput,
    StepOutput,
    ToScheduler,
)
from .reports import refusal, report
from .scheduler import RequestUpdate, Scheduler


class Inbox(Protocol):
    """Where messages come from."""

    def take(self, wait_s: float | None) -> Sequence[ToScheduler]:
        """The messages since the last call.

        Where there are none, it waits `wait_s` seconds for one, or for `wake`; None waits as long as it takes.
        """

    def wake(self) -> None:
        """End the waiting of `take`. May be called from any thread."""


class SchedulerLoop:
    """Runs a scheduler until it is stopped. All methods but `stop` are for one thread.

    Args:
        intake: makes requests of messages.
        send: takes the news of each step, and answers to questions.
        overlap: run `overlap_loop`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        intake: Intake,
        inbox: Inbox,
        send: Callable[[FromScheduler], None],
        *,
        overlap: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._intake = intake
        self._inbox = inbox
        self._send = send
        self._overlap = overlap
        self._clock = clock or MonotonicClock()
        self._refused: list[RequestOutput] = []
        self._stopped = False
        scheduler.on_grammar_ready(inbox.wake)

    def run(self) -> None:
        """Run until `stop`."""
        if self._overlap:
            self.overlap_loop()
        else:
            self.normal_loop()

    def stop(self) -> None:
        """End `run` after the step that it is in."""
        self._stopped = True
        self._inbox.wake()

    def normal_loop(self) -> None:
        """One step after the other."""
        while self._receive():
            began = self._clock.now()
            self._report(self._scheduler.step())
            self._scheduler.count_work(self._clock.now() - began)

    def overlap_loop(self) -> None:
        """Each step is launched before the one before it is finished."""
        while self._receive():
            began = self._clock.now()
            self._report(self._scheduler.step_ahead())
            self._scheduler.prepare_next()
            self._scheduler.count_work(self._clock.now() - began)

    # -- messages ---------------------------------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Take messages in, and wait for one where nothing else is to do; False when the loop is to end."""
        if self._stopped:
            return False
        for message in self._inbox.take(self._scheduler.idle_s):
            self._take(message)
        for new in self._intake.take_ready():
            self._add(new)
        return not self._stopped

    def _take(self, message: ToScheduler) -> None:
        if isinstance(message, NewRequest):
            self._add(message)
        elif isinstance(message, AbortRequest):
            if self._intake.drop(message.id):
                self._refuse(message.id, RequestAbortedError(f"request {message.id} was aborted"))
            else:
                self._scheduler.abort(message.id)
        elif isinstance(message, DropPrefixes):
            self._scheduler.drop_prefixes(message.program, message.requests)
        elif isinstance(message, EndProgram):
            self._scheduler.end_program(message.program)
        else:
            self._send(self.answer(message))

    def _add(self, new: NewRequest) -> None:
        """Take a request in. Whatever is wrong with it ends it alone."""
        try:
            request = self._intake.take(new)
            if request is not None:
                self._scheduler.add(request)
        except Exception as error:
            self._refuse(new.id, error)

    def _refuse(self, request_id: str, error: Exception) -> None:
        self._refused.append(refusal(request_id, error))

    def answer(self, question: Question) -> Answer:
        """What the scheduler knows at this moment."""
        if question.what == "stats":
            return Answer(question.id, stats=self._scheduler.stats())
        if question.what == "flush_cache":
            return Answer(question.id, tokens=self._scheduler.flush_cache())
        return Answer(question.id, cache=self._scheduler.cache_tree(question.limit))

    def _report(self, updates: Sequence[RequestUpdate]) -> None:
        outputs, self._refused = self._refused, []
        outputs += [report(each.request, each.text, finished=each.finished) for each in updates]
        if outputs:
            self._send(StepOutput(tuple(outputs)))
