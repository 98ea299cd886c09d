"""A server's life between its start and the signal that ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palmette.runtime.processes.runtime_client import Runtime

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(BaseException):  # no error, and not to be caught as one
    """SIGTERM came; raised in the main thread, as KeyboardInterrupt is for Ctrl-C."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `Terminated` at SIGTERM in this block, and put the signals' old handlers back after it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_until_signal(runtime: Runtime, drain_s: float, tell: Callable[[str], None]) -> bool:
    """Wait for the end of an engine. The first SIGINT or SIGTERM lets open requests end, the second does not wait.

    Returns:
        whether the first signal was enough.

    Raises:
        EngineError: a process died; the message has the last lines of its log.
    """
    asked = _Asked(runtime, drain_s, tell)
    for number in SIGNALS:
        signal.signal(number, asked.take)
    try:
        while not runtime.wait(1.0):  # with a time limit: a signal is then seen on every platform
            pass
    finally:
        asked.wait()
        runtime.shutdown()
    return asked.count < 2


class _Asked:
    """The signals that came, each of which ends the engine in a thread of its own."""

    def __init__(self, runtime: Runtime, drain_s: float, tell: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._drain_s = drain_s
        self._tell = tell
        self._enders: list[threading.Thread] = []

    @property
    def count(self) -> int:
        return len(self._enders)

    def take(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        drain_s = 0.0 if self._enders else self._drain_s
        if drain_s:
            again = "; Ctrl-C again does not wait" if number == signal.SIGINT else ""
            self._tell(f"ending: open requests have {drain_s:g} s{again}")
        ender = threading.Thread(target=lambda: self._runtime.shutdown(drain_s=drain_s), name="palmette-end")
        self._enders.append(ender)
        ender.start()

    def wait(self) -> None:
        """Wait until all of them have done their work; more may come in the meantime."""
        for ender in self._enders:
            ender.join()
