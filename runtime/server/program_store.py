"""The programs and channels that clients have open over HTTP, by their ids."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TypeVar

from palmette.runtime.channel import ProgramOptions
from palmette.runtime.errors import EngineError, QueueFullError, RequestError
from palmette.runtime.messages import SessionOptions
from palmette.runtime.service import EngineService, EventSink, ServiceSession

from .held_programs import Channel, Held, HeldProgram

logger = logging.getLogger("palmette.server")

REMEMBERED = 1024
"""Of so many programs and channels that are gone, the store knows why."""

RETRY_AFTER_S = 1.0

_SHUTTING_DOWN = "the server is shutting down"

Kind = TypeVar("Kind", bound=Held)


class UnknownIdError(Exception):
    """No program or channel has this id. The message says why, where that is known."""


class ProgramStore:
    """All programs and channels that are open, by their ids.

    Args:
        most_programs: open at once, those of channels included.
        idle_timeout_s: most time that one of them is kept without anybody who uses it.
    """

    def __init__(self, service: EngineService, *, most_programs: int, idle_timeout_s: float) -> None:
        self._service = service
        self._most_programs = most_programs
        self._idle_timeout_s = idle_timeout_s
        self._held: dict[str, Held] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._sessions: set[ServiceSession] = set()
        self._draining = False

    @property
    def open_programs(self) -> int:
        return len(self._sessions)

    @property
    def open_channels(self) -> int:
        return sum(isinstance(held, Channel) for held in self._held.values())

    def open_program(self, options: ProgramOptions) -> HeldProgram:
        """A new program.

        Raises:
            RequestError: an option is out of its range.
            QueueFullError: there are too many.
            EngineError: the engine was shut down, or it failed.
        """
        program = HeldProgram(self, options)
        self._held[program.id] = program
        return program

    def open_channel(self, options: ProgramOptions) -> Channel:
        """A new channel. Raises: as `open_program`."""
        if len(self._held) >= self._most_programs:
            raise self._full()
        self._check_open()
        channel = Channel(self, options)
        self._held[channel.id] = channel
        return channel

    def program(self, program_id: str) -> HeldProgram:
        """The program of this id.

        Raises:
            UnknownIdError: there is none.
        """
        return self._find(HeldProgram, "program", program_id)

    def channel(self, channel_id: str) -> Channel:
        """The channel of this id.

        Raises:
            UnknownIdError: there is none.
        """
        return self._find(Channel, "channel", channel_id)

    def drain(self) -> None:
        """Take nothing new; what is idle ends now, and the rest as soon as it is done."""
        self._draining = True
        for held in list(self._held.values()):
            held.end_when_done(_SHUTTING_DOWN)

    def close(self, reason: str) -> None:
        """Drop everything, so that every stream ends."""
        self._draining = True
        for held in list(self._held.values()):
            held.drop(reason)

    def forget(self, held_id: str, reason: str) -> None:
        """`held_id` was dropped."""
        del self._held[held_id]
        self._gone[held_id] = reason
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
        logger.debug("%s is gone: %s", held_id, reason)

    def open_session(self, events: EventSink, options: ProgramOptions) -> ServiceSession:
        """A session of the engine's.

        Raises:
            QueueFullError: as many programs are open as may be.
            EngineError: the engine was shut down, or it failed.
        """
        self._check_open()
        if len(self._sessions) >= self._most_programs:
            raise self._full()
        settings = SessionOptions(
            priority=options.priority, cache_salt=options.cache_salt, timeout_s=options.timeout_s, program=options.name
        )
        session = self._service.open(events, settings)
        self._sessions.add(session)
        return session

    def close_session(self, session: ServiceSession) -> None:
        session.close()
        self._sessions.discard(session)

    def idle_timeout_s(self, options: ProgramOptions) -> float:
        """How long a program or channel of these options is kept unused."""
        asked_s = options.idle_timeout_s
        if asked_s is None:
            return self._idle_timeout_s
        if not 0 < asked_s <= self._idle_timeout_s:
            raise RequestError(
                f"idle_timeout_s must be more than 0 and at most {self._idle_timeout_s:g} s, the server's own limit,"
                f" not {asked_s!r}"
            )
        return asked_s

    def _check_open(self) -> None:
        if self._draining:
            raise EngineError(_SHUTTING_DOWN)

    def _full(self) -> QueueFullError:
        message = f"{self._most_programs} programs are open, as many as this server takes; close some, or try again"
        return QueueFullError(message, retry_after_s=RETRY_AFTER_S)

    def _find(self, kind: type[Kind], what: str, asked: str) -> Kind:
        held = self._held.get(asked)
        if isinstance(held, kind):
            return held
        if asked in self._gone:
            raise UnknownIdError(f"the {what} {asked!r} is gone: {self._gone[asked]}")
        raise UnknownIdError(f"there is no {what} {asked!r}; POST /{what}s opens one and gives its id")
