"""What a server is built on: programs run by an engine, seen from an event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .messages import USUAL_OPTIONS, CacheTree, SchedulerStats, SessionOptions
from .program import Event, ModelInfo, Node
from .tokenizer import Tokenizer

EventSink = Callable[[Event], None]


class ServiceSession(Protocol):
    """One program's request tree."""

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes, parents before children and sources before references. Returns at once.

        Raises:
            RequestError: an id is taken or negative, or a parent or source is unknown; none of `nodes` was added.
            EngineError: the engine was shut down, or it failed.
        """

    def abort(self) -> None:
        """End what still runs: every node that is not done ends in a `Failed` event. The session stays open.

        Nothing happens where it is closed, or the engine has ended.
        """

    def close(self) -> None:
        """Abort what still runs and forget the tree. No event comes after it returns. Closing twice is allowed."""


class EngineService(Protocol):
    """Runs programs for a server. All methods are for the thread of one event loop, which is also where events come.

    Every `Generate` and `Select` node ends in exactly one `Generated`, `Selected` or `Failed` event.
    """

    @property
    def model_info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def open_sessions(self) -> int:
        """How many sessions are open, whoever opened them."""

    def open(self, events: EventSink, options: SessionOptions = USUAL_OPTIONS) -> ServiceSession:
        """Open an empty tree whose events go to `events`, which must be quick and must not block.

        Raises:
            EngineError: the engine was shut down, or it failed.
        """

    async def flush_cache(self) -> int:
        """Drop every prefix that no running request uses; returns the number of tokens dropped."""

    async def stats(self) -> SchedulerStats:
        """Counts of the scheduler at this moment."""

    async def cache_tree(self, limit: int) -> CacheTree:
        """Up to `limit` nodes of the radix cache, the most used first."""
