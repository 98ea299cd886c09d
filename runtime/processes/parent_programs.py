"""The programs of the process that launched an engine, in the server's process."""

from __future__ import annotations

import asyncio
from functools import partial

from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.messages import Question
from palmette.runtime.program import Delta, Event, Failed, Generate, Node, Select
from palmette.runtime.service import ServiceSession

from .engine_client import EngineClient
from .process_messages import (
    CloseProgram,
    ExtendProgram,
    FromParent,
    FromServer,
    OpenProgram,
    ProgramEvents,
    QuestionFailed,
)
from .sockets import Sender, encode

_LOOK_EVERY_S = 0.02


class ParentPrograms:
    """Opens and extends trees as the parent says, and sends it their events, once a turn of the loop.

    All methods are for the loop's thread.
    """

    def __init__(self, client: EngineClient, parent: Sender[FromServer]) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._parent = parent
        self._sessions: dict[int, ServiceSession] = {}
        self._refused: dict[int, EngineError] = {}  # why a program could not be opened
        self._events: dict[int, list[Event]] = {}
        self._questions: set[asyncio.Task[None]] = set()
        self._unfinished: dict[int, set[int]] = {}  # generations and selects of each program that have not ended

    async def wait_until_idle(self) -> None:
        """Return when no program waits for anything."""
        while any(self._unfinished.values()):
            await asyncio.sleep(_LOOK_EVERY_S)

    def take(self, message: FromParent) -> None:
        """Carry out what the parent asks for."""
        if isinstance(message, Question):
            task = self._loop.create_task(self._answer(message))
            self._questions.add(task)
            task.add_done_callback(self._questions.discard)
        elif isinstance(message, OpenProgram):
            self._open(message)
        elif isinstance(message, ExtendProgram):
            self._extend(message)
        elif isinstance(message, CloseProgram):
            self._close(message)
        elif (session := self._sessions.get(message.program)) is not None:
            session.abort()

    def _open(self, message: OpenProgram) -> None:
        try:
            self._sessions[message.program] = self._client.open(partial(self._report, message.program), message.options)
        except EngineError as error:  # its nodes will be told
            self._refused[message.program] = error

    def _extend(self, message: ExtendProgram) -> None:
        session = self._sessions.get(message.program)
        try:
            if session is None:
                raise self._refused.get(message.program) or EngineError("this program was closed")
            waiting = self._unfinished.setdefault(message.program, set())
            waiting.update(node.id for node in message.nodes if isinstance(node, Generate | Select))
            session.extend(message.nodes)
        except (EngineError, RequestError) as error:
            self._refuse(message.program, message.nodes, error)

    def _refuse(self, program: int, nodes: tuple[Node, ...], error: Exception) -> None:
        for node in nodes:
            if isinstance(node, Generate | Select):
                self._report(program, Failed(node.id, type(error).__name__, str(error)))

    def _close(self, message: CloseProgram) -> None:
        session = self._sessions.pop(message.program, None)
        self._refused.pop(message.program, None)
        self._events.pop(message.program, None)
        self._unfinished.pop(message.program, None)
        if session is not None:
            session.close()

    async def _answer(self, question: Question) -> None:
        try:
            answer = await self._client.ask(question.what, question.limit)
        except EngineError as error:
            self._parent.send(QuestionFailed(question.id, str(error)))
        else:
            self._parent.send(type(answer)(question.id, answer.stats, answer.tokens, answer.cache))

    def _report(self, program: int, event: Event) -> None:
        """Have an event sent at the end of this turn of the loop."""
        if not self._events:
            self._loop.call_soon(self._flush)
        self._events.setdefault(program, []).append(event)
        if not isinstance(event, Delta) and program in self._unfinished:
            self._unfinished[program].discard(event.node)

    def _flush(self) -> None:
        events, self._events = self._events, {}
        if events:
            self._parent.send_encoded([encode(ProgramEvents(program, tuple(news))) for program, news in events.items()])
