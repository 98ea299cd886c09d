"""Fetch a model, with a progress bar on standard error."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from .errors import note


class DownloadBar:
    """A progress bar for each stage of a download, shown from the first report on; lines where there is no terminal.

    Called with a stage's name and its bytes done and in all, as `pull_model` reports them.
    """

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._stage = ""
        self._task = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._begin(stage)
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _begin(self, stage: str) -> None:
        self._stage = stage
        if self._progress.disable:
            note(stage)
        else:
            self._progress.start()
            self._task = self._progress.add_task(stage, total=None)


def fetch_default_model() -> Path:
    """The default model's folder, fetched first where it is not in the cache.

    Raises:
        ModelLoadError: it cannot be fetched.
    """
    from palmette.runtime.default_model import pull_model

    with DownloadBar() as bar:
        return pull_model(None, bar)
