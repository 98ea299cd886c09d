"""An engine that computes, on this machine, for the programs of `programs.py`; its clients run on one event loop."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
from benchmarks.programs_infinite import RunRequest

from palmette.runtime.config import EngineConfig
from palmette.runtime.engine import Engine, EngineSession
from palmette.runtime.loading import load_engine
from palmette.runtime.messages import SchedulerStats, SessionOptions
from palmette.runtime.request import Request
from palmette.runtime.scheduler import Scheduler
from palmette.runtime.service import EventSink
from palmette.runtime.tokenizer import Tokenizer


class RealTime:
    """Seconds since `begin`, and what is to happen when; for any thread. What happens, happens on one of them."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def begin(self) -> None:
        """Begin to count."""
        self._began_s = time.monotonic()

    def now(self) -> float:
        """Seconds since `begin`."""
        return time.monotonic() - self._began_s

    def at(self, time_s: float, happening: Callable[[float], None]) -> None:
        """Have something happen at a time."""
        with self._changed:
            heapq.heappush(self._due, (time_s, next(self._numbers), happening))
            self._changed.notify()

    def run(self, unfinished: Callable[[], bool]) -> None:
        """Let happen what is due, for as long as there is something unfinished."""
        while unfinished():
            with self._changed:
                wait_s = self._due[0][0] - self.now() if self._due else 1.0
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                _, _, happening = heapq.heappop(self._due)
            happening(self.now())


class RealEngine:
    """An `Engine` in this process, with what it has run. It is shut down when the programs have ended."""

    def __init__(self, config: EngineConfig) -> None:
        self.time = RealTime()
        self._taken: list[Request] = []
        self._recording = mock.patch.object(Scheduler, "add", _recorded(Scheduler.add, self._taken))
        self._engine: Engine = load_engine(config)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def requests(self) -> list[RunRequest]:
        """All that were run. Their times are the engine's, whose beginning is another."""
        return [_kept(request) for request in self._taken if request.started_s is not None]

    def stats(self) -> SchedulerStats:
        """What the scheduler had done in the end."""
        return self._stats

    def open(self, events: EventSink, options: SessionOptions) -> EngineSession:
        """Open a program."""
        return self._engine.open(events, options)

    def run(self, unfinished: Callable[[], bool]) -> None:
        """Run until all programs have ended."""
        self.time.begin()
        with self._recording, self._engine:
            self.time.run(unfinished)
            self._stats = self._engine.stats()


def _recorded(add: Callable[[Scheduler, Request], None], taken: list[Request]) -> Callable[[Scheduler, Request], None]:
    def recording(scheduler: Scheduler, request: Request) -> None:
        add(scheduler, request)
        taken.append(request)

    return recording


def _kept(request: Request) -> RunRequest:
    assert request.started_s is not None
    assert request.ended_s is not None
    output: Sequence[int] = request.output_ids[:-1].tolist()  # the last one is never computed
    return RunRequest(
        prompt_ids=np.array(request.prompt_ids, dtype=np.int32),
        arrived_s=request.arrived_s,
        started_s=request.started_s,
        ended_s=request.ended_s,
        cached_tokens=request.cached_tokens,
        output_ids=tuple(output),
    )
