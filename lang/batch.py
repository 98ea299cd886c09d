"""Runs many programs side by side on a bounded number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Literal

AUTO_THREADS = 128
"""Most threads that "auto" takes; a program's thread mostly waits."""


def run_all(jobs: Sequence[Callable[[], None]], *, num_threads: int | Literal["auto"], title: str | None) -> None:
    """Run every job and wait for all of them. Jobs that have not begun are dropped if the wait is interrupted.

    Args:
        jobs: must not raise.
        num_threads: most jobs at once; "auto" is one for each job, up to `AUTO_THREADS`.
        title: of a progress bar on standard error, or None for none.

    Raises:
        ValueError: `num_threads` is neither "auto" nor a whole number of at least 1.
    """
    threads = _threads(num_threads, len(jobs))
    with _progress(title, len(jobs)) as advance:
        executor = ThreadPoolExecutor(threads, thread_name_prefix="palmette-batch")
        try:
            futures: list[Future[None]] = [executor.submit(job) for job in jobs]
            for future in as_completed(futures):
                future.result()
                advance()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _threads(asked: int | Literal["auto"], jobs: int) -> int:
    if asked == "auto":
        return max(1, min(AUTO_THREADS, jobs))
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ValueError(f'num_threads must be "auto" or a whole number of at least 1, not {asked!r}')
    return asked


@contextmanager
def _progress(title: str | None, total: int) -> Iterator[Callable[[], None]]:
    """A function to call after each job; it moves a bar where there is a title."""
    if title is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
