"""Another thread that does what it is given only when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from palmette.runtime.jobs import Job


class Aside:
    """What is to be done in another thread, kept until it is run."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Job], Callable[[Future[Job]], None]]] = []

    def __call__(self, make: Callable[[], Job], then: Callable[[Future[Job]], None]) -> None:
        self.waiting.append((make, then))

    def run_next(self) -> None:
        make, then = self.waiting.pop(0)
        made: Future[Job] = Future()
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)
        then(made)
