"""Runs a program for many items, a bounded number at once, and hands out their states."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .batch_flow import InFlight, Task
from .batch_lines import result_line
from .batch_order import WINDOW, in_prefix_order
from .batch_progress import BatchCounts, shown_progress
from .batch_results import ResultsFile
from .batch_workers import BatchWorkers
from .outcome import outcome_of, reason_of
from .restored import RestoredRun
from .run import Run
from .state import ProgramState

AUTO_THREADS = 128
"""Most programs at once for "auto"; a program's thread mostly waits."""

Concurrency = int | Literal["auto"]
Item = Mapping[str, Any] | tuple[Any, ...] | list[Any]
"""The arguments of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How a batch is run; checked when it is made.

    Attributes:
        num_threads: most programs at once; "auto" is one for each item, up to `AUTO_THREADS`.
        generator_style: states are handed out one by one, in the items' order.
        as_finished: states are handed out one by one, as their programs end.
        order: of beginning: "prefix", items that share one follow each other, or "given".
        progress_bar: standard error shows how far the batch is.
        results_file: a line is written here for every item that has ended.
        resume: the file is one that a batch has begun; what it holds without an error is not run again.

    Raises:
        TypeError, ValueError: an option is none of what it may be.
    """

    num_threads: Concurrency
    generator_style: bool
    as_finished: bool
    order: Literal["prefix", "given"]
    progress_bar: bool
    results_file: str | os.PathLike[str] | None
    resume: bool

    def __post_init__(self) -> None:
        most = self.num_threads
        if most != "auto" and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ValueError(f'num_threads must be "auto" or a whole number of at least 1, not {most!r}')
        if self.order not in ("prefix", "given"):
            raise ValueError(f'order must be "prefix" or "given", not {self.order!r}')
        for name in ("generator_style", "as_finished", "progress_bar", "resume"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.results_file is None:
            if self.resume:
                raise ValueError("resume=True goes on with a file of results; name it by results_file=...")
        elif not isinstance(self.results_file, str | os.PathLike) or not os.fspath(self.results_file):
            raise TypeError(f"results_file must be the path of a file, or None, not {self.results_file!r}")

    @property
    def hands_out_in_order(self) -> bool:
        """States are handed out one by one, and one whose turn has not come waits in memory."""
        return self.generator_style and not self.as_finished

    @property
    def most(self) -> int:
        """Most programs at once."""
        return AUTO_THREADS if self.num_threads == "auto" else self.num_threads


class Batch:
    """A program and the items to run it for. `run_all` or `iterate` is called, once.

    Args:
        name: the program's.
        program: its function; errors name lines of its file.
        new_run: makes the run of an item, or raises TypeError where it does not fit.

    Raises:
        TypeError: `items` cannot be iterated over.
        ResultsFileError: the results file cannot be used.
    """

    def __init__(
        self,
        name: str,
        program: Callable[..., Any],
        items: Iterable[Item],
        new_run: Callable[[int, Item], Run],
        options: BatchOptions,
    ) -> None:
        if not isinstance(items, Iterable):
            raise TypeError(
                f"run_batch needs a list or another iterable of items, not {type(items).__name__}: {items!r}"
            )
        self._name = name
        self._file = _file_of(program)
        self._items = items
        self._new_run = new_run
        self._options = options
        path = options.results_file
        self._results = None if path is None else ResultsFile(Path(path), resume=options.resume)
        self._given: dict[int, Item] = {}  # items whose results are to be written

    def run_all(self) -> list[ProgramState]:
        """Check every item, run those that are not done, and wait for all of them. An interrupt cancels them."""
        try:
            tasks = list(self._tasks())
        except BaseException:
            self._close()
            raise
        count = max(1, len(tasks))
        return list(self._states(iter(tasks), len(tasks), most=min(self._options.most, count), ahead=count))

    def iterate(self) -> Generator[ProgramState, None, None]:
        """The states one by one. At most twice as many items as programs may run at once are taken ahead of them.

        Where the number of items is known, they are at hand, and runs that have not begun may be taken further ahead,
        to begin in a good order. Else they are taken in a thread of their own.
        """
        total = len(self._items) if isinstance(self._items, Sized) else None
        return self._states(self._tasks(), total, most=self._options.most, ahead=2 * self._options.most)

    # -- tasks ------------------------------------------------------------------------------------------------------

    def _tasks(self) -> Iterator[Task]:
        """What is to be done for each item, in the items' order."""
        for place, item in enumerate(self._items):
            run = self._new_run(place, item)
            run.state.place = place
            if self._results is not None:
                if self._results.holds(place, _arguments(item)):
                    yield RestoredRun(run, self._results)
                    continue
                self._given[place] = item
            yield run

    # -- running ----------------------------------------------------------------------------------------------------

    def _states(
        self, tasks: Iterator[Task], total: int | None, *, most: int, ahead: int
    ) -> Generator[ProgramState, None, None]:
        most_running, at_hand = ahead, total is not None
        if self._options.order == "prefix" and at_hand:
            window = ahead if self._options.hands_out_in_order else max(ahead, WINDOW)
            tasks = in_prefix_order(tasks, window=window)
            most_running = most + most // 8  # what is taken late is taken in a better order
        counts = BatchCounts(total, self._results.count_done(total) if self._results else 0)
        with ExitStack() as stack:
            workers = BatchWorkers(most, lambda run: self._ended(run, counts, show))
            in_order = not self._options.as_finished
            flight = stack.enter_context(InFlight(workers, in_order=in_order, most_running=most_running, most=ahead))
            show = stack.enter_context(self._progress(counts))
            if self._results is not None:
                stack.enter_context(self._results)  # closed before what still runs is cancelled
            yield from flight.states(tasks, at_hand=at_hand)

    def _progress(self, counts: BatchCounts) -> AbstractContextManager[Callable[[], None]]:
        return shown_progress(counts, self._name) if self._options.progress_bar else nullcontext(_nothing)

    def _ended(self, run: Run, counts: BatchCounts, show: Callable[[], None]) -> None:
        """A run has ended, in the thread that ran it."""
        if self._results is not None:
            self._write(run.state, self._results)
        if self._options.progress_bar:
            counts.add(run.state)
            show()

    def _write(self, state: ProgramState, results: ResultsFile) -> None:
        assert state.place is not None
        outcome = outcome_of(state)
        error = None if outcome.error is None else reason_of(outcome.error, self._file)
        results.write(
            state.place, result_line(state.place, _arguments(self._given.pop(state.place)), outcome, error=error)
        )

    def _close(self) -> None:
        if self._results is not None:
            self._results.close()


def _arguments(item: Item) -> object:
    """An item as it is written: an object of arguments by name, or a list of them by place."""
    return dict(item) if isinstance(item, Mapping) else list(item)


def _file_of(program: Callable[..., Any]) -> Path | None:
    """The file that the program's function stands in, where there is one."""
    try:
        return Path(inspect.getfile(inspect.unwrap(program)))
    except TypeError:
        return None


def _nothing() -> None:
    """Where nothing is shown."""
