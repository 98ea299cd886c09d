"""The protocol between programs and whatever runs them: in process, over HTTP, or scripted for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from palmette.runtime.program import Event, ModelInfo, Node

EventSink = Callable[[Event], None]


class Session(Protocol):
    """One program's request tree on a backend."""

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes, parents before children. Returns at once; a node that cannot run ends in a `Failed` event."""

    def close(self) -> None:
        """Abort what still runs and forget the tree. No event comes after it returns. Closing twice is allowed."""


@runtime_checkable
class Backend(Protocol):
    """Runs programs.

    Every `Generate` and `Select` node ends in exactly one `Generated`, `Selected` or `Failed` event. Events of a
    session come one at a time, in order, from a thread of the backend's: a sink must be quick and must not block.
    """

    @property
    def model_info(self) -> ModelInfo: ...

    def open(self, events: EventSink) -> Session:
        """Open an empty tree whose events go to `events`."""
