"""What clients have open over HTTP: programs by themselves, and channels of many."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.runtime.channel import (
    AbortProgram,
    ChannelMessage,
    ExtendProgram,
    OpenProgram,
    ProgramEvent,
    ProgramOptions,
)
from palmette.runtime.errors import EngineError, QueueFullError, RequestError
from palmette.runtime.program import Delta, Event, Failed, Generate, Node, Reference, Select
from palmette.runtime.service import EventSink, ServiceSession

from .event_log import EventLog

MAX_NODES = 200_000
"""Most nodes of one program."""

PROGRAM_EVENT_BYTES = 8 << 20
CHANNEL_EVENT_BYTES = 128 << 20
"""So much may wait for a listener to take it; a program or channel with more is dropped."""


class Holder(Protocol):
    """Whoever keeps programs and channels, and gives them their sessions."""

    def open_session(self, events: EventSink, options: ProgramOptions) -> ServiceSession: ...

    def close_session(self, session: ServiceSession) -> None: ...

    def idle_timeout_s(self, options: ProgramOptions) -> float: ...

    def forget(self, held_id: str, reason: str) -> None: ...


class Held:
    """Something that a client has open: dropped once nobody listens to it or uses it for `idle_timeout_s`."""

    def __init__(self, store: Holder, log: EventLog, what: str, idle_timeout_s: float) -> None:
        self.id = f"{what}_{secrets.token_urlsafe(12)}"
        self.log = log
        self.idle_timeout_s = idle_timeout_s
        self.gone = False
        self._end_reason: str | None = None
        self._store = store
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._last_use_s = self._loop.time()
        self._alarm = self._loop.call_later(idle_timeout_s, self._look)

    def use(self) -> None:
        """Somebody is interested in it now."""
        self._last_use_s = self._loop.time()

    def drop(self, reason: str, *, discard: bool = False) -> None:
        """End its programs and its stream, and forget it; its pages come back. Dropping it twice is allowed."""
        if self.gone:
            return
        self.gone = True
        self._alarm.cancel()
        self._close_sessions()
        self.log.end(b"event: end\ndata: " + msgspec.json.encode({"reason": reason}) + b"\n\n", discard=discard)
        self._store.forget(self.id, reason)

    def end_when_done(self, reason: str) -> None:
        """Drop it as soon as everything in it has its result."""
        self._end_reason = reason
        self._drop_if_done()

    @property
    def busy(self) -> bool:
        """Whether a generation or select has no result yet."""
        raise NotImplementedError

    def _close_sessions(self) -> None:
        raise NotImplementedError

    def _drop_if_done(self) -> None:
        """Drop it if it is done and was to end then. What calls may be inside an event sink: it is dropped after it."""
        if self._end_reason is not None and not self.busy:
            self._loop.call_soon(self.drop, self._end_reason)

    def _overflow(self) -> None:
        """More events wait than are kept. What called is inside an event sink: the session is closed after it."""
        self._loop.call_soon(lambda: self.drop("its events were not taken, and too many waited", discard=True))

    def _look(self) -> None:
        """Drop it if it is idle, else look again when it could be."""
        if self.log.listened_to:
            self.use()
        left_s = self._last_use_s + self.idle_timeout_s - self._loop.time()
        if left_s <= 0:
            self.drop(f"nobody listened to it or used it for {self.idle_timeout_s:g} s")
        else:
            self._alarm = self._loop.call_later(left_s, self._look)


class HeldProgram(Held):
    """A program with a stream of its own."""

    def __init__(self, store: Holder, options: ProgramOptions) -> None:
        log = EventLog(_one_event, together=False, most_bytes=PROGRAM_EVENT_BYTES, on_full=self._overflow)
        super().__init__(store, log, "program", store.idle_timeout_s(options))
        self._program = _Program()
        try:
            self._program.session = store.open_session(self._take, options)
        except PalmetteError:
            self._alarm.cancel()
            raise

    @property
    def busy(self) -> bool:
        return bool(self._program.unfinished)

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes.

        Raises:
            RequestError: as `ServiceSession.extend`, or there are too many nodes.
            EngineError: the engine was shut down, or it failed.
        """
        self.use()
        self._program.extend(nodes)
        self._drop_if_done()

    def abort(self) -> None:
        """End what still runs.

        Raises:
            EngineError: the engine was shut down, or it failed.
        """
        self.use()
        if self._program.session is not None:
            self._program.session.abort()

    def _take(self, event: Event) -> None:
        if not isinstance(event, Delta):
            self._program.unfinished.discard(event.node)
            self._drop_if_done()
        self.log.put(0, event)

    def _close_sessions(self) -> None:
        if self._program.session is not None:
            self._store.close_session(self._program.session)


class Channel(Held):
    """Many programs of one client, numbered by it, with one stream for all their events."""

    def __init__(self, store: Holder, options: ProgramOptions) -> None:
        log = EventLog(_all_events, together=True, most_bytes=CHANNEL_EVENT_BYTES, on_full=self._overflow)
        super().__init__(store, log, "channel", store.idle_timeout_s(options))
        self._programs: dict[int, _Program] = {}
        self._taken = 0

    @property
    def busy(self) -> bool:
        return any(program.unfinished for program in self._programs.values())

    def take(self, messages: Iterable[ChannelMessage], number: int) -> None:
        """Do what the client says. What is refused becomes `Failed` events of the nodes it was about.

        Args:
            number: of these messages; those of a number that was there already are not taken again.

        Raises:
            RequestError: a program is opened under a number that is taken.
        """
        self.use()
        if number <= self._taken:
            return
        self._taken = number
        for message in messages:
            if isinstance(message, OpenProgram):
                self._open(message)
            elif isinstance(message, ExtendProgram):
                self._extend(message.program, message.nodes)
            elif (program := self._programs.get(message.program)) is not None and program.session is not None:
                if isinstance(message, AbortProgram):
                    with contextlib.suppress(EngineError):  # a stopped engine has nothing left to abort
                        program.session.abort()
                else:
                    self._store.close_session(program.session)
                    del self._programs[message.program]
                    self._drop_if_done()
            else:
                self._programs.pop(message.program, None)

    def _open(self, message: OpenProgram) -> None:
        number = message.program
        if number in self._programs:
            raise RequestError(f"program {number} of this channel is open already; give each a number of its own")
        self._programs[number] = program = _Program()
        try:
            program.session = self._store.open_session(lambda event: self._put(number, event), message.options)
        except PalmetteError as error:
            program.refusal = error

    def _extend(self, number: int, nodes: Sequence[Node]) -> None:
        program = self._programs.get(number)
        try:
            if program is None:
                raise RequestError(f"program {number} of this channel is not open")
            program.extend(nodes)
        except PalmetteError as error:
            self._refuse(number, nodes, error)

    def _put(self, number: int, event: Event) -> None:
        if not isinstance(event, Delta):
            if (program := self._programs.get(number)) is not None:
                program.unfinished.discard(event.node)
            self._drop_if_done()
        self.log.put(number, event)

    def _refuse(self, number: int, nodes: Sequence[Node], error: PalmetteError) -> None:
        retry_after_s = error.retry_after_s if isinstance(error, QueueFullError) else None
        for node in nodes:
            if isinstance(node, Generate | Select | Reference):
                self.log.put(number, Failed(node.id, type(error).__name__, str(error), retry_after_s))

    def _close_sessions(self) -> None:
        for program in self._programs.values():
            if program.session is not None:
                self._store.close_session(program.session)
        self._programs.clear()


class _Program:
    """A program's session, or why it got none, and the nodes whose end has not come."""

    def __init__(self) -> None:
        self.session: ServiceSession | None = None
        self.refusal: PalmetteError | None = None
        self.unfinished: set[int] = set()
        self._nodes = 0

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes. Raises: why it has no session, that there are too many nodes, or as `ServiceSession.extend`."""
        if self._nodes + len(nodes) > MAX_NODES:
            raise RequestError(
                f"a program may have {MAX_NODES} nodes; this one has {self._nodes}, and {len(nodes)} more came"
            )
        self._nodes += len(nodes)
        if self.session is None:
            raise self.refusal or EngineError("this program was closed")
        awaited = {node.id for node in nodes if isinstance(node, Generate | Select)}  # they end, whatever happens
        added = awaited - self.unfinished
        self.unfinished |= added
        try:
            self.session.extend(nodes)
        except BaseException:
            self.unfinished -= added
            raise


def _one_event(number: int, events: Sequence[ProgramEvent]) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (number, msgspec.json.encode(events[0].event))


def _all_events(number: int, events: Sequence[ProgramEvent]) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (number, msgspec.json.encode(events))
