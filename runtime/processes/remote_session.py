"""A program's tree on an engine of other processes, seen from the parent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.program import Delta, Event, Failed, Generate, Node, Select
from palmette.runtime.program_host import NodeIds

from .process_messages import AbortProgram, CloseProgram, ExtendProgram, FromParent
from .sockets import encode

logger = logging.getLogger("palmette.engine")

EventSink = Callable[[Event], None]


class Sending(Protocol):
    """What a session needs of its engine."""

    def send(self, message: FromParent) -> None: ...

    def send_encoded(self, message: bytes) -> None: ...

    def forget(self, number: int) -> None: ...


class RemoteSession:
    """One program's tree. `deliver` and `fail` are for the engine's thread, the rest for any."""

    def __init__(self, number: int, events: EventSink, engine: Sending) -> None:
        self._number = number
        self._events = events
        self._engine = engine
        self._growing = threading.Lock()  # held by `extend`, so that messages keep the order of their nodes
        self._node_ids = NodeIds()
        self._unfinished: set[int] = set()
        self._emitting = threading.RLock()  # held while an event is delivered, so that close() can wait for it
        self._closed = False

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes, parents before children and sources before references. Returns without waiting for the engine.

        Raises:
            RequestError: an id is taken or negative, a parent or source is unknown, or a node cannot be sent; none of
                `nodes` was added.
            EngineError: the engine was shut down, or it failed.
        """
        with self._growing:
            if self._closed:
                raise EngineError("this session is closed")
            data = _encoded(self._number, nodes)
            self._node_ids.add(nodes)
            self._unfinished |= {
                node.id for node in nodes if isinstance(node, Generate | Select)
            }  # before they can end
            self._engine.send_encoded(data)

    def abort(self) -> None:
        """End what still runs: every node that is not done ends in a `Failed` event. The session stays open.

        Nothing happens where it is closed, or the engine has ended.
        """
        with suppress(EngineError):  # all that was open has failed
            self._engine.send(AbortProgram(self._number))

    def close(self) -> None:
        """Abort what still runs and forget the tree. No event comes after it returns. Closing twice is allowed."""
        with self._emitting:
            if self._closed:
                return
            self._closed = True
        self._engine.forget(self._number)
        with suppress(EngineError):  # an engine that has ended has nothing left to abort
            self._engine.send(CloseProgram(self._number))

    def deliver(self, event: Event) -> None:
        """Hand an event of the engine's over."""
        with self._emitting:
            if self._closed:
                return
            if not isinstance(event, Delta):
                self._unfinished.discard(event.node)
            try:
                self._events(event)
            except BaseException:  # a broken client, even one that calls sys.exit(), must not stop the others
                logger.exception("a program's event sink failed; its session is closed")
                self.close()

    def fail(self, message: str) -> None:
        """The engine is gone: fail every generation and select that has not ended."""
        with self._growing:
            unfinished = sorted(self._unfinished)
        for node_id in unfinished:
            self.deliver(Failed(node_id, "EngineError", message))


def _encoded(number: int, nodes: Sequence[Node]) -> bytes:
    """The message that adds nodes to a tree.

    Raises:
        RequestError: a node cannot be sent; the message names it.
    """
    try:
        return encode(ExtendProgram(number, tuple(nodes)))
    except (UnicodeEncodeError, OverflowError, TypeError):
        for node in nodes:
            _check_sendable(node)
        raise


def _check_sendable(node: Node) -> None:
    try:
        encode(node)
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.start + 1]
        raise RequestError(
            f"node {node.id} holds {found!r}, half of a character, which no text may; leave it out"
        ) from None
    except (OverflowError, TypeError) as error:
        raise RequestError(f"node {node.id} cannot be sent to the engine: {error}") from None
