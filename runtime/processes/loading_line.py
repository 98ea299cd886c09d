"""A line on standard error that says how far an engine is with loading."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

_PATIENCE_S = 10.0
"""Where standard error is no terminal, a start that takes longer is told of, once."""


class LoadingLine:
    """One line, written anew on a terminal and cleared at the end."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._started = time.monotonic()
        self._is_terminal = _is_terminal()
        self._width = 0
        self._told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r")

    def show(self, doing: Mapping[str, str]) -> None:
        """Say what the processes do, by their names."""
        passed = time.monotonic() - self._started
        if self._is_terminal:
            what = next((f", {name} {doing[name]}" for name in ("scheduler", "server") if name in doing), "")
            line = f"palmette: starting {self._model}{what}, {passed:.0f} s"[:118]
            self._write("\r" + line.ljust(self._width))
            self._width = max(self._width, len(line))
        elif passed > _PATIENCE_S and not self._told:
            self._told = True
            self._write(f"palmette: starting {self._model} ...\n")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
