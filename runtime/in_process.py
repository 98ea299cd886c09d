"""An engine of this process as a service for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .engine import Engine, EngineSession
from .messages import USUAL_OPTIONS, CacheTree, SchedulerStats, SessionOptions
from .program import Event, ModelInfo, Node
from .request_tree import nobody
from .service import EventSink
from .tokenizer import Tokenizer


class InProcessService:
    """An `EngineService` on an `Engine`: events are handed over from the engine's thread to the loop.

    Made on the loop that it serves. The engine is shut down by whoever launched it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    @property
    def model_info(self) -> ModelInfo:
        return self._engine.model_info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def open_sessions(self) -> int:
        return self._engine.open_sessions

    def open(self, events: EventSink, options: SessionOptions = USUAL_OPTIONS) -> InProcessSession:
        return InProcessSession(self._engine, self._loop, events, options)

    async def flush_cache(self) -> int:
        return await asyncio.to_thread(self._engine.flush_cache)

    async def stats(self) -> SchedulerStats:
        return await asyncio.to_thread(self._engine.stats)

    async def cache_tree(self, limit: int) -> CacheTree:
        return await asyncio.to_thread(self._engine.cache_tree, limit)


class InProcessSession:
    """A session whose events come on the loop's thread."""

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, events: EventSink, options: SessionOptions
    ) -> None:
        self._events = events
        self._closed = False
        self._loop = loop
        self._session: EngineSession = engine.open(self._hand_over, options)

    def extend(self, nodes: Sequence[Node]) -> None:
        self._session.extend(nodes)

    def abort(self) -> None:
        self._session.abort()

    def close(self) -> None:
        self._closed = True
        self._events = nobody
        self._session.close()

    def _hand_over(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: Event) -> None:
        if not self._closed:
            self._events(event)
