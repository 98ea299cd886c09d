"""One program on a server, and what it has to say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.runtime.channel import CloseProgram, ExtendProgram, OpenProgram, ProgramOptions
from palmette.runtime.errors import EngineError
from palmette.runtime.messages import LONGEST_NAME
from palmette.runtime.program import Delta, Event, Failed, Generate, Node, Select

from .backend import EventSink

logger = logging.getLogger("palmette.http")

_encode = msgspec.json.Encoder().encode


class Sender(Protocol):
    """What carries a session's messages to the server."""

    def check(self) -> None:
        """Raise EngineError where nothing can be sent any more."""

    def send(self, outgoing: Outgoing) -> None:
        """Send it soon; returns at once."""

    def forget(self, session: HttpSession) -> None:
        """No event of this session is wanted any more."""


class HttpSession:
    """One program's tree on a server."""

    def __init__(self, channel: Sender, number: int, events: EventSink, program: str | None = None) -> None:
        self.number = number
        self._options = ProgramOptions() if program is None else ProgramOptions(name=program[:LONGEST_NAME])
        self._channel = channel
        self._events = events
        self._unfinished: set[int] = set()
        self._emitting = threading.RLock()  # held while an event is delivered, so that close() can wait for it
        self._opened = False
        self._closed = False

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes, parents before children. Returns at once; a node that cannot run ends in a `Failed` event.

        Raises:
            EngineError: the server is gone, or this session is closed.
        """
        text = _encode(ExtendProgram(self.number, tuple(nodes)))
        waited_for = [node.id for node in nodes if isinstance(node, Generate | Select)]
        with self._emitting:
            if self._closed:
                raise EngineError("this session is closed")
            self._channel.check()
            if not self._opened:
                self._opened = True
                text = _encode(OpenProgram(program=self.number, options=self._options)) + b"," + text
            self._unfinished.update(waited_for)
            self._channel.send(Outgoing(text, self, waited_for))

    def close(self) -> None:
        """Abort what still runs and forget the tree. No event comes after it returns. Closing twice is allowed."""
        with self._emitting:
            if self._closed:
                return
            self._closed = True
            self._events = _ignore  # so that nothing keeps the program, and with it the backend
        self._channel.forget(self)
        if self._opened:
            text = _encode(CloseProgram(self.number))
            self._channel.send(Outgoing(text, self, (), urgent=bool(self._unfinished)))

    def deliver(self, event: Event) -> None:
        """Hand an event to the program."""
        with self._emitting:
            if self._closed:
                return
            if not isinstance(event, Delta):
                self._unfinished.discard(event.node)
            try:
                self._events(event)
            except BaseException:  # a broken program, even one that calls sys.exit(), must not stop the others
                logger.exception("a program's event sink failed; its session is closed")
                self.close()

    def fail(self, error: PalmetteError, node_ids: Sequence[int] | None = None) -> None:
        """End nodes that have no result, all of them or some, with an error."""
        with self._emitting:
            for node_id in sorted(self._unfinished if node_ids is None else self._unfinished.intersection(node_ids)):
                self.deliver(Failed(node_id, type(error).__name__, str(error), getattr(error, "retry_after_s", None)))


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What a session says.

    Attributes:
        text: one message or more as JSON.
        node_ids: the nodes that fail where it is refused.
        urgent: it is not to wait for others to go along with.
    """

    text: bytes
    session: HttpSession
    node_ids: Sequence[int]
    urgent: bool = True


def _ignore(event: Event) -> None:
    """The sink of a closed session."""
