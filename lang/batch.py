"""Runs many programs side by side: plain ones on a bounded number of threads, async ones on one event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

from .run import Run
from .state import ProgramState

AUTO_THREADS = 128
"""Most programs at once for "auto"; a program's thread mostly waits."""

Concurrency = int | Literal["auto"]


def run_all(runs: Sequence[Run], *, num_threads: Concurrency, title: str | None) -> list[ProgramState]:
    """Run every program and wait for all of them. If the wait is interrupted, all are cancelled.

    Args:
        num_threads: most programs at once; "auto" is one for each, up to `AUTO_THREADS`.
        title: of a progress bar on standard error, or None for none.

    Raises:
        ValueError: `num_threads` is neither "auto" nor a whole number of at least 1.
    """
    most = _checked(num_threads)
    try:
        with _progress(title, len(runs)) as advance:
            return list(_results(iter(runs), advance, most=min(most, max(1, len(runs))), ahead=len(runs)))
    except BaseException:
        for run in runs:
            run.state.cancel()
        raise


def iter_runs(runs: Iterable[Run], *, num_threads: Concurrency, title: str | None) -> Iterator[ProgramState]:
    """Run programs and yield their states in order, as they are asked for.

    At most twice `num_threads` programs are taken from `runs` and not yielded yet. Arguments and errors as `run_all`.
    """
    most = _checked(num_threads)
    return _iterate(iter(runs), most, title)


def _iterate(runs: Iterator[Run], most: int, title: str | None) -> Iterator[ProgramState]:
    with _progress(title, None) as advance:
        yield from _results(runs, advance, most=most, ahead=2 * most)


def _results(runs: Iterator[Run], advance: Callable[[], None], *, most: int, ahead: int) -> Iterator[ProgramState]:
    """States in order; `ahead` bounds the runs that were taken and not yielded yet. Those are cancelled at the end."""
    waiting: deque[tuple[Run, Future[ProgramState]]] = deque()
    workers = _Workers(most)
    try:
        for run in runs:
            waiting.append((run, workers.submit(run)))
            waiting[-1][1].add_done_callback(lambda _: advance())
            while waiting and (len(waiting) >= ahead or waiting[0][1].done()):
                yield _next(waiting)
        while waiting:
            yield _next(waiting)
    finally:
        for run, future in waiting:
            future.cancel()
            run.state.cancel()
        workers.close()


def _next(waiting: deque[tuple[Run, Future[ProgramState]]]) -> ProgramState:
    state = waiting[0][1].result()
    waiting.popleft()
    return state


class _Workers:
    """Threads for plain programs, and one thread with an event loop for async ones; begun when they are needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: asyncio.Semaphore | None = None

    def submit(self, run: Run) -> Future[ProgramState]:
        if run.is_async:
            return asyncio.run_coroutine_threadsafe(self._run_in_turn(run), self._running_loop())
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="palmette-batch")
        return self._threads.submit(run.run_kept)

    def close(self) -> None:
        """Take no more runs; does not wait for those that were cancelled."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _run_in_turn(self, run: Run) -> ProgramState:
        assert self._turns is not None
        async with self._turns:
            return await run.run_kept_on_loop()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            started: queue.SimpleQueue[asyncio.AbstractEventLoop] = queue.SimpleQueue()
            threading.Thread(target=_run_loop, args=(started,), name="palmette-batch-loop", daemon=True).start()
            self._loop = started.get()
            self._turns = asyncio.Semaphore(self._most)
        return self._loop


def _run_loop(started: queue.SimpleQueue[asyncio.AbstractEventLoop]) -> None:
    """Run an event loop until it is stopped, then end what was cancelled on it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.call_soon(started.put, loop)
        loop.run_forever()


def _checked(asked: Concurrency) -> int:
    if asked == "auto":
        return AUTO_THREADS
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ValueError(f'num_threads must be "auto" or a whole number of at least 1, not {asked!r}')
    return asked


@contextmanager
def _progress(title: str | None, total: int | None) -> Iterator[Callable[[], None]]:
    """A function to call after each run, from any thread; it moves a bar where there is a title."""
    if title is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
