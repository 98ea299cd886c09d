"""A service whose latencies and failures are counted as its events pass."""

from __future__ import annotations

import time
from collections.abc import Callable

from .messages import USUAL_OPTIONS, CacheTree, SchedulerStats, SessionOptions
from .metrics import Metrics
from .program import Delta, Event, Failed, Generated, ModelInfo
from .service import EngineService, EventSink, ServiceSession
from .tokenizer import Tokenizer


class MeasuredService:
    """An `EngineService` in front of another one."""

    def __init__(self, service: EngineService, metrics: Metrics, *, now: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._metrics = metrics
        self._now = now

    @property
    def model_info(self) -> ModelInfo:
        return self._service.model_info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._service.tokenizer

    @property
    def open_sessions(self) -> int:
        return self._service.open_sessions

    def open(self, events: EventSink, options: SessionOptions = USUAL_OPTIONS) -> ServiceSession:
        return self._service.open(_Measure(events, self._metrics, self._now), options)

    async def flush_cache(self) -> int:
        return await self._service.flush_cache()

    async def stats(self) -> SchedulerStats:
        return await self._service.stats()

    async def cache_tree(self, limit: int) -> CacheTree:
        return await self._service.cache_tree(limit)


class _Measure:
    """The events of one program on their way."""

    def __init__(self, events: EventSink, metrics: Metrics, now: Callable[[], float]) -> None:
        self._events = events
        self._metrics = metrics
        self._now = now
        self._first_s: dict[int, float] = {}
        self._latest_s: dict[tuple[int, int], float] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Delta):
            self._piece(event)
        elif isinstance(event, Generated):
            self._end(event)
        elif isinstance(event, Failed):
            self._metrics.count_failure(event.kind)
            self._first_s.pop(event.node, None)
        self._events(event)

    def _piece(self, event: Delta) -> None:
        now_s, place = self._now(), (event.node, event.index)
        latest_s = self._latest_s.get(place)
        self._latest_s[place] = now_s
        if latest_s is not None:
            self._metrics.inter_token.observe(now_s - latest_s)
        else:
            self._first_s.setdefault(event.node, now_s)

    def _end(self, event: Generated) -> None:
        self._metrics.generation.observe(event.elapsed_s)
        first_s = self._first_s.pop(event.node, None)
        if first_s is not None:
            began_s = self._now() - event.elapsed_s
            self._metrics.first_token.observe(max(0.0, first_s - began_s))
            for index in range(len(event.completions)):
                self._latest_s.pop((event.node, index), None)
