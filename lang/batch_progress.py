"""How far a batch is: items, failures, tokens a second, hit rate and the time left, on standard error."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from palmette.runtime.program import Generated, Selected

from .state import ProgramState

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_S = 10.0
"""Where standard error is no terminal, a line of progress is written at most this often."""

Clock = Callable[[], float]


class BatchCounts:
    """Counts over the items of a batch that have ended. For any thread.

    Tokens are those that the backend reports of each answer, so they are there on every backend that counts them.

    Attributes:
        total: the number of items, or None where they were not counted.
        before: items that a results file held already; they are done too, and are not counted otherwise.
        done, failed: items that have ended here, and those of them that have an error.
        output_tokens: tokens generated, forced ones too.
        prompt_tokens, cached_tokens: the prompts' tokens, and how many of them were found in the radix cache.
    """

    def __init__(self, total: int | None, before: int = 0, *, clock: Clock = time.monotonic) -> None:
        self.total = total
        self.before = before
        self.done = self.failed = 0
        self.output_tokens = self.prompt_tokens = self.cached_tokens = 0
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()

    def add(self, state: ProgramState, *, failed: bool = False) -> None:
        """Count an item that has ended; `failed` says so where its state does not."""
        execution = state._execution
        with execution.changed:
            results = [record.result for record in execution.tree.records if record.result is not None]
            failed = failed or execution.first_error() is not None
        with self._lock:
            self.done += 1
            self.failed += failed
            for result in results:
                self._add_result(result)

    def add_failed(self) -> None:
        """Count an item that could not be run."""
        with self._lock:
            self.done += 1
            self.failed += 1

    def _add_result(self, result: Generated | Selected) -> None:
        for part in result.completions if isinstance(result, Generated) else (result,):
            self.prompt_tokens += part.prompt_tokens
            self.cached_tokens += part.cached_tokens
            self.output_tokens += 0 if isinstance(part, Selected) else part.completion_tokens

    @property
    def elapsed_s(self) -> float:
        """Since the batch began."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float | None:
        """How long the rest takes at the rate so far; None where that is not known."""
        if self.total is None or not self.done:
            return None
        return self.elapsed_s * max(0, self.total - self.before - self.done) / self.done

    def now(self) -> str:
        """Failures, tokens a second, hit rate and the time left as of now; the time taken where none is left."""
        failed = [f"{self.failed} failed"] if self.failed else []
        left_s = self.left_s
        return ", ".join([*failed, *self._rates(), f"{_minutes(left_s)} left" if left_s else _minutes(self.elapsed_s)])

    def __str__(self) -> str:
        """One line, such as ``512 of 10000, 3 failed, 812 tokens/s, hit rate 93 %, 4:10 left``."""
        of_all = "" if self.total is None else f" of {self.total}"
        return f"{self.before + self.done}{of_all}, {self.now()}"

    def summary(self) -> str:
        """One line about a batch that has ended."""
        before = [f"{self.before} were there"] if self.before else []
        whole = f"{self.done} items in {self.elapsed_s:.1f} s"
        return ", ".join([whole, f"{self.failed} failed", *self._rates(), *before])

    def _rates(self) -> list[str]:
        """Tokens a second and hit rate, where the backend counts tokens."""
        rates = []
        if self.output_tokens and self.elapsed_s > 0:
            rates.append(f"{self.output_tokens / self.elapsed_s:,.0f} tokens/s")
        if self.prompt_tokens:
            rates.append(f"hit rate {100 * self.cached_tokens / self.prompt_tokens:.0f} %")
        return rates


@contextmanager
def shown_progress(counts: BatchCounts, title: str) -> Iterator[Callable[[], None]]:
    """A function to call after each item, from any thread, which shows the counts on standard error.

    A terminal or a notebook shows a bar. Elsewhere a line is written every 10 seconds, and one at the end.
    """
    from rich.console import Console

    console = Console(stderr=True)
    showing = _bar(console, counts, title) if console.is_terminal or console.is_jupyter else _log(counts, title)
    with showing as show:
        yield show


@contextmanager
def _bar(console: Console, counts: BatchCounts, title: str) -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=counts.total, completed=counts.before, now="")

        def show() -> None:
            progress.update(task, completed=counts.before + counts.done, now=counts.now())

        yield show


@contextmanager
def _log(counts: BatchCounts, title: str) -> Iterator[Callable[[], None]]:
    lock = threading.Lock()
    begins = f"{title}: " if title else ""
    next_at = LINE_EVERY_S

    def show() -> None:
        nonlocal next_at
        with lock:
            if counts.elapsed_s < next_at:
                return
            next_at = counts.elapsed_s + LINE_EVERY_S
        print(f"{begins}{counts}", file=sys.stderr, flush=True)

    try:
        yield show
        print(f"{begins}{counts.summary()}", file=sys.stderr, flush=True)
    finally:
        next_at = math.inf  # what is cancelled now is no progress


def _minutes(seconds: float) -> str:
    """``3:07``, or ``2:00:09`` from an hour on."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
