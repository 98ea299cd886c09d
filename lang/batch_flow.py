"""Hands out the states of runs as they end, or in the items' order, while a bounded number of runs is in memory."""

from __future__ import annotations

import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from .batch_workers import BatchWorkers
from .restored import RestoredRun
from .run import Run
from .state import ProgramState

Task = Run | RestoredRun
"""What is to be done for an item: run it, or read its result."""

_News = int | Task | BaseException | None
"""The place of a task that has ended; the next task; what taking it raised; None where there is none."""


class InFlight:
    """Tasks that were taken and whose states were not handed out yet. A context manager, which cancels the rest.

    Args:
        workers: run them; closed at the end.
        in_order: states are handed out by their places, each place being taken sooner or later; else as runs end.
        most_running: most tasks that were taken and have not ended.
        most: most tasks in flight; more are taken only while the next place in order is not among them.
    """

    def __init__(self, workers: BatchWorkers, *, in_order: bool, most_running: int, most: int) -> None:
        self._workers = workers
        self._in_order = in_order
        self._most_running = most_running
        self._most = most
        self._next = 0
        self._running: dict[int, tuple[Task, Future[ProgramState]]] = {}
        self._ended: dict[int, Future[ProgramState]] = {}  # those that wait for their turn
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True asks for a task, False ends their thread

    def states(self, tasks: Iterator[Task], *, at_hand: bool) -> Iterator[ProgramState]:
        """The states of all tasks. What `tasks` raises comes after the states of the tasks before it.

        Args:
            at_hand: no task is long in coming. Else they are taken in a thread of their own, so that no state that is
                ready waits for the next task.
        """
        ask = functools.partial(self._take_next, tasks) if at_hand else self._taking_thread(tasks)
        failure: Exception | None = None
        more, asked = True, False
        while more or self._running:
            if more and not asked and self._has_room():
                ask()
                asked = True
            news = self._news.get()
            if isinstance(news, int):
                yield from self._hand_out(news)
            elif isinstance(news, Task):
                self._begin(news)
                asked = False
            elif isinstance(news, Exception):
                failure, more = news, False
            elif news is not None:
                raise news
            else:
                more = False
        for place in sorted(self._ended):  # a task before them was never taken
            yield self._ended.pop(place).result()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task, future in self._running.values():
            future.cancel()
            if isinstance(task, Run):
                task.state.cancel()
        self._wanted.put(False)
        self._workers.close()

    def _has_room(self) -> bool:
        if len(self._running) >= self._most_running:
            return False
        in_turn = not self._in_order or self._next in self._running or self._next in self._ended
        return len(self._running) + len(self._ended) < self._most or not in_turn

    def _taking_thread(self, tasks: Iterator[Task]) -> Callable[[], None]:
        """Begin a thread that takes a task whenever the function is called. A daemon: the next task may never come."""

        def take_all() -> None:
            try:
                while self._wanted.get():
                    self._take_next(tasks)
            except BaseException as error:
                self._news.put(error)

        in_context = contextvars.copy_context().run
        threading.Thread(target=in_context, args=(take_all,), name="palmette-batch-items", daemon=True).start()
        return functools.partial(self._wanted.put, True)

    def _take_next(self, tasks: Iterator[Task]) -> None:
        try:
            self._news.put(next(tasks, None))
        except Exception as error:
            self._news.put(error)

    def _begin(self, task: Task) -> None:
        future = self._workers.submit(task) if isinstance(task, Run) else Future[ProgramState]()
        place = task.place
        self._running[place] = task, future
        if isinstance(task, RestoredRun):
            future.set_result(task.load())
        future.add_done_callback(lambda _: self._news.put(place))

    def _hand_out(self, place: int) -> Iterator[ProgramState]:
        """The states that can be handed out now that this task has ended."""
        _, future = self._running.pop(place)
        if not self._in_order:
            yield future.result()
            return
        self._ended[place] = future
        while (following := self._ended.pop(self._next, None)) is not None:
            self._next += 1
            yield following.result()
