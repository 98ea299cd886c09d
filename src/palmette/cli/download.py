"""Tell how far a download is, on standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .errors import note

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class DownloadBar:
    """A progress bar for each stage of a download; a line for each where standard error is no terminal.

    Called with a stage's name and its bytes done and in all, as `pull_model` reports them. A download that never
    reports, since the cache had all, shows nothing.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._begin(stage, total)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _begin(self, stage: str, total: int) -> None:
        self._stage = stage
        if not sys.stderr.isatty():
            note(f"{stage} the model ({total / 1e6:.0f} MB)")
            return
        if self._progress is None:
            self._progress = _started_progress()
        self._task = self._progress.add_task(f"{stage} the model", total=total or None)


def _started_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    progress.start()
    return progress
