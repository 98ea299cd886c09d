"""What every process of an engine does at its start and its end, whatever its work.

A process reads its settings from standard input and goes on listening there: a `Stop` asks it to end, and the end of
the input says that the parent is gone. It reports to the parent on what was its standard output; what libraries print
goes to standard error, which is its log.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.runtime.logging_setup import LogSettings, configure_logging

from .process_messages import ChildSettings, FromChild, Progress, Ready, Refused, Stop

logger = logging.getLogger("palmette.process")

_PR_SET_PDEATHSIG = 1


class Child:
    """This process, as one of an engine's.

    Attributes:
        settings: what the parent said.
        orphaned: called, from another thread, when the parent is gone; then the process ends at once.
    """

    def __init__(self, name: str) -> None:
        self.orphaned: Callable[[], None] = _nothing
        self._reports = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        os.umask(0o077)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the user is the parent's to answer
        self.settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildSettings)
        self._on_stop: Callable[[Stop], None] | None = None
        self._stop: Stop | None = None
        self._gate = threading.Lock()
        self._is_ready = False
        if name == "server":
            signal.signal(signal.SIGTERM, self._terminated)
            _end_with_parent(signal.SIGTERM)  # it has something to clear away
        else:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _end_with_parent(signal.SIGKILL)
        if self.is_orphan:  # the parent ended before it could be noticed
            os._exit(1)
        threading.Thread(target=self._listen, name="palmette-parent", daemon=True).start()

    @property
    def is_orphan(self) -> bool:
        """Whether the parent is gone."""
        return os.getppid() != self.settings.parent_pid

    def on_stop(self, callback: Callable[[Stop], None]) -> None:
        """Have `callback` called, from another thread, when the parent asks for the end; at once where it has."""
        with self._gate:
            self._on_stop = callback
            stop = self._stop
        if stop is not None:
            callback(stop)

    def report(self, message: FromChild) -> None:
        """Tell the parent."""
        self._is_ready = self._is_ready or isinstance(message, Ready)
        with suppress(OSError):  # a parent that is gone is noticed elsewhere
            self._reports.write(msgspec.json.encode(message) + b"\n")
            self._reports.flush()

    def report_progress(self, text: str) -> None:
        """Tell the parent what is being done now."""
        self.report(Progress(text))

    def report_failure(self, error: BaseException) -> None:
        """Tell the parent why there will be no start; after the start the log tells it."""
        kind = type(error)
        if self._is_ready or not isinstance(error, PalmetteError):
            said = "" if self._is_ready else f": {error}"  # once there are requests, it may quote one
            logger.error("%s%s", kind.__name__, said, exc_info=error)
        if not self._is_ready:
            self.report(Refused(kind.__module__, kind.__qualname__, str(error)))

    def _listen(self) -> None:
        with suppress(OSError, ValueError, msgspec.DecodeError):
            while line := sys.stdin.buffer.readline():
                self._take_stop(msgspec.json.decode(line, type=Stop))
        try:
            self.orphaned()
        finally:
            os._exit(1)

    def _terminated(self, *_: object) -> None:
        """SIGTERM while the server is not yet up."""
        if self.is_orphan:
            self.orphaned()
        os._exit(1)

    def _take_stop(self, stop: Stop) -> None:
        with self._gate:
            self._stop = stop
            callback = self._on_stop
        if callback is not None:
            callback(stop)


class ChildMain(Protocol):
    """The work of a process, from its settings to its end."""

    def __call__(self, child: Child, /) -> None: ...


def run_child(name: str, work: ChildMain) -> None:
    """Be a process of an engine: carry out `work` and leave with 0, or 1 where it raised.

    SIGTERM is left to the server, the only process that has something to finish. The others end when the parent says
    so, that whoever stops a whole group of processes gets the open requests answered.
    """
    child = Child(name)
    configure_logging(name, LogSettings.of(child.settings.server))
    code = 1
    try:
        work(child)
        code = 0
    except BaseException as error:
        child.report_failure(error)
    finally:
        sys.stderr.flush()
        os._exit(code)  # threads of libraries are not waited for


def _end_with_parent(death_signal: signal.Signals) -> None:
    """Have the system send `death_signal` when the thread that started this process ends, where it can (Linux).

    The end of the standard input says the same, but a process that the parent forked may keep it open.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)


def _nothing() -> None:
    """Nothing is to be done when the parent is gone."""
