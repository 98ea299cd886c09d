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
class Speculates(Protocol):
    """A session whose calls cost round trips to a service, which may hold several answers in one."""

    def speculate(self, tokens: int) -> None:
        """Let an answer of up to so many tokens hold those of several generations. Called before the first `extend`."""


@runtime_checkable
class HasMeter(Protocol):
    """A session that counts what its program uses."""

    @property
    def meter(self) -> object: ...


@runtime_checkable
class Backend(Protocol):
    """Runs programs.

    Every `Generate` and `Select` node ends in exactly one `Generated`, `Selected` or `Failed` event. Events of a
    session come one at a time, in order, from a thread of the backend's: a sink must be quick and must not block.
    """

    @property
    def model_info(self) -> ModelInfo: ...

    def open(self, events: EventSink, *, program: str | None = None) -> Session:
        """Open an empty tree whose events go to `events`. `program` names what runs, the same way for every run."""


_default_backend: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Run programs on `backend` where no other is named; None forgets it.

    Raises:
        TypeError: `backend` is not a backend.
    """
    global _default_backend
    _default_backend = None if backend is None else checked_backend(backend)


def default_backend() -> Backend | None:
    """What `set_default_backend` was last given."""
    return _default_backend


def checked_backend(backend: object) -> Backend:
    """`backend` itself.

    Raises:
        TypeError: it cannot run programs.
    """
    if isinstance(backend, type) or not isinstance(backend, Backend):
        raise TypeError(
            f"a backend is what pt.runtime.launch(...) returns, or a pt.MockBackend(...), not "
            f"{type(backend).__name__}: {backend!r}"
        )
    return backend
