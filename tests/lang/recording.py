"""A backend that notes when its sessions are closed, and that a test can hold still."""

from __future__ import annotations

import threading

import palmette as pt
from palmette.lang.backend import EventSink
from palmette.lang.mock_backend import MockSession
from palmette.runtime.program import Generate, Select

TIMEOUT_S = 30.0


class RecordingBackend(pt.MockBackend):
    """A mock that counts sessions opened and closed."""

    opened = 0
    closed = 0

    def open(self, events: EventSink, *, program: str | None = None) -> MockSession:
        self.opened += 1
        backend = self

        class Session(MockSession):
            def close(self) -> None:
                backend.closed += 1
                super().close()

        return Session(self, events)


class Gate:
    """Answers that wait until the test lets them go."""

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self._opened = threading.Event()

    def let_go(self) -> None:
        self._opened.set()

    def __call__(self, prompt: str, node: Generate | Select) -> str:
        assert self._opened.wait(TIMEOUT_S), "the test never let the answer go"
        return self._answer
