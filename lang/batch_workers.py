"""Where the programs of a batch run: plain ones on a bounded number of threads, async ones on one event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from .run import Run
from .state import ProgramState

Ended = Callable[[Run], None]
"""Called where a run has ended, before anybody gets its state."""


class BatchWorkers:
    """Threads for plain programs, and one thread with an event loop for async ones; begun when they are needed.

    Args:
        most: most programs at once of either kind.
        ended: is told of every run that has ended, in the thread that ran it. What it raises is the future's error.
    """

    def __init__(self, most: int, ended: Ended) -> None:
        self._most = most
        self._ended = ended
        self._threads = _Threads(most, self._run)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: asyncio.Semaphore | None = None

    def submit(self, run: Run) -> Future[ProgramState]:
        """Have a run done, as soon as it is its turn."""
        if run.is_async:
            return asyncio.run_coroutine_threadsafe(self._run_in_turn(run), self._running_loop())
        return self._threads.submit(run)

    def close(self) -> None:
        """Take no more runs; does not wait for those that were cancelled."""
        self._threads.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, run: Run) -> ProgramState:
        state = run.run_kept()
        self._ended(run)
        return state

    async def _run_in_turn(self, run: Run) -> ProgramState:
        assert self._turns is not None
        async with self._turns:
            state = await run.run_kept_on_loop()
            self._ended(run)
            return state

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            started: queue.SimpleQueue[asyncio.AbstractEventLoop] = queue.SimpleQueue()
            threading.Thread(target=_run_loop, args=(started,), name="palmette-batch-loop", daemon=True).start()
            self._loop = started.get()
            self._turns = asyncio.Semaphore(self._most)
        return self._loop


class _Threads:
    """Up to `most` threads that run what is submitted, in that order; each is begun when all others are busy.

    They are daemons: a program that was cancelled and waits for something else holds up nobody's exit. Where the system
    has no thread left, those that were begun do all of the work.
    """

    def __init__(self, most: int, work: Callable[[Run], ProgramState]) -> None:
        self._most = most
        self._work = work
        self._begun = 0
        self._idle = threading.Semaphore(0)
        self._queue: queue.SimpleQueue[tuple[Run, Future[ProgramState]] | None] = queue.SimpleQueue()

    def submit(self, run: Run) -> Future[ProgramState]:
        future: Future[ProgramState] = Future()
        if not self._idle.acquire(blocking=False) and self._begun < self._most:
            self._begin()
        self._queue.put((run, future))
        return future

    def close(self) -> None:
        """Have every thread end after what it runs now; futures that were not begun are cancelled by their owner."""
        for _ in range(self._begun):
            self._queue.put(None)

    def _begin(self) -> None:
        try:
            threading.Thread(target=self._loop, name=f"palmette-batch-{self._begun}", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            if not self._begun:
                raise
            self._most = self._begun
            return
        self._begun += 1

    def _loop(self) -> None:
        while (task := self._queue.get()) is not None:
            run, future = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._work(run))
                except BaseException as error:
                    future.set_exception(error)
            del task, run, future  # an idle thread keeps no program alive
            self._idle.release()


def _run_loop(started: queue.SimpleQueue[asyncio.AbstractEventLoop]) -> None:
    """Run an event loop until it is stopped, then end what was cancelled on it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.call_soon(started.put, loop)
        loop.run_forever()
