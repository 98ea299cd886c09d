"""One run of an engine's three processes, seen from their parent: started, watched, asked, and ended as one."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import zmq

from palmette.constrained.errors import PalmetteError
from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.messages import Answer, Question, SessionOptions
from palmette.runtime.program import ModelInfo

from .private_folder import make_private_folder, remove_private_folder, socket_path
from .process_errors import error_of
from .process_messages import (
    ChildSettings,
    FromChild,
    FromParent,
    FromServer,
    OpenProgram,
    ProgramEvents,
    Progress,
    QuestionFailed,
    Ready,
    Refused,
    Stop,
)
from .remote_session import EventSink, RemoteSession
from .sockets import Receiver, Sender, encode
from .supervisor import ChildEnd, ChildSpec, Supervisor

logger = logging.getLogger("palmette.engine")

SERVER = "server"
MODULES = {
    "scheduler": "palmette.runtime.processes.scheduler_process",
    "detokenizer": "palmette.runtime.processes.detokenizer_process",
    SERVER: "palmette.runtime.processes.server_process",
}

_LAST_ANSWERS_S = 2.0
"""Time for the server to tell its clients that the engine failed."""


@dataclass(frozen=True, slots=True)
class Address:
    """What a server that is ready says of itself."""

    model_info: ModelInfo
    port: int


class EngineProcesses:
    """Scheduler, detokenizer and server of one engine, started when it is made.

    When one of them dies, every open session fails with its last lines of log, and the others are ended.

    Args:
        settings: what the processes are told; the private folder is put in here.
        on_failure: called once, from a thread, if a process dies after all were ready, before programs learn of it.
    """

    def __init__(self, settings: ChildSettings, on_failure: Callable[[EngineError], None]) -> None:
        self.folder = make_private_folder()
        self.failure: PalmetteError | None = None
        self.loading: dict[str, str] = {}
        self._on_failure = on_failure
        self._address: Address | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        decoder: msgspec.msgpack.Decoder[list[FromServer]] = msgspec.msgpack.Decoder(list[FromServer])
        self._receiver = Receiver(self._context, socket_path(self.folder, "parent"), decoder)
        self._sender: Sender[FromParent] = Sender(self._context, socket_path(self.folder, SERVER))
        self._gate = threading.RLock()  # guards what follows, and the sender
        self._missing = set(MODULES)
        self._settled = threading.Event()  # all are ready, or one failed
        self._closing = False
        self._numbers = itertools.count()
        self._sessions: dict[int, RemoteSession] = {}
        self._questions: dict[int, Future[Answer]] = {}
        self._backlog: deque[FromServer] = deque()
        told = msgspec.structs.replace(settings, folder=str(self.folder), parent_pid=os.getpid())
        self._supervisor = Supervisor(
            [ChildSpec(name, module, told) for name, module in MODULES.items()],
            on_report=self._take_report,
            on_end=self._take_end,
            on_log=_show,
        )
        self._thread = threading.Thread(target=self._receive, name="palmette-runtime", daemon=True)
        self._thread.start()
        self._supervisor.start()

    # -- the life of the processes ----------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> Address | None:
        """Wait until all are ready; None where the time was over before.

        Raises:
            PalmetteError: what one of them met in loading, as it would have been raised here.
        """
        if not self._settled.wait(timeout_s):
            return None
        if self._address is None or self._missing:
            raise self.failure or EngineError("the engine was shut down while it was loading")
        return self._address

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs on the thread that delivers events."""
        return threading.current_thread() is self._thread

    @property
    def pids(self) -> dict[str, int]:
        """The ids of the processes that were started, by name."""
        return dict(self._supervisor.pids)

    def end(self, reason: EngineError, *, drain_s: float = 0.0) -> None:
        """End the processes and wait until they are gone. What is open fails with `reason`, after `drain_s` at most.

        Calling it again is allowed: a shorter time to drain then wins.
        """
        with self._gate:
            self._closing = True
            ready = self._address is not None
        if ready:
            self._supervisor.end(Stop(drain_s, None if drain_s else str(reason)), SERVER)
        else:
            self._supervisor.kill()
        self._supervisor.wait()
        self._fail(reason)
        if not self.is_own_thread:
            self._thread.join()

    # -- programs and questions -------------------------------------------------------------------------------------

    def open(self, events: EventSink, options: SessionOptions) -> RemoteSession:
        """Open an empty tree whose events go to `events`.

        Raises:
            EngineError: the engine has failed or was ended.
            RequestError: an option is no text, or too large a number.
        """
        number = next(self._numbers)
        session = RemoteSession(number, events, self)
        try:
            opening = encode(OpenProgram(number, options))
        except (UnicodeEncodeError, OverflowError, TypeError) as error:
            raise RequestError(f"the options of the program cannot be sent to the engine: {error}") from None
        with self._gate:
            self.send_encoded(opening)
            self._sessions[number] = session
        return session

    def send(self, message: FromParent) -> None:
        """Send a message to the server.

        Raises:
            EngineError: the engine has failed or was ended.
        """
        self.send_encoded(encode(message))

    def send_encoded(self, message: bytes) -> None:
        """Send to the server what `encode` has made of a message.

        Raises:
            EngineError: the engine has failed or was ended.
        """
        with self._gate:
            if self.failure is not None:
                raise EngineError(str(self.failure)) from self.failure.__cause__
            self._sender.send_encoded([message])

    def forget(self, number: int) -> None:
        """A session was closed: its events go nowhere."""
        with self._gate:
            self._sessions.pop(number, None)

    def ask(self, question: Callable[[int], Question]) -> Answer:
        """The scheduler's answer to a question that is made with its number.

        Raises:
            EngineError: the engine has failed or was ended.
        """
        answer: Future[Answer] = Future()
        number = next(self._numbers)
        with self._gate:
            self.send(question(number))
            self._questions[number] = answer
        if self.is_own_thread:  # asked by an event sink: events wait until it is answered
            while not answer.done() and self.failure is None:
                self._receiver.wait()
                self._sort(self._receiver.take())
            if not answer.done():
                raise EngineError(str(self.failure))
        return answer.result()

    # -- the thread that receives -----------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            while self.failure is None:
                self._receiver.wait()
                self._take()
            self._take()  # what the server could still say
        except BaseException as error:  # a thread that ends without telling would leave every program waiting
            logger.exception("the engine's messages cannot be read")
            self._supervisor.kill()
            self._fail(EngineError(f"the engine's messages cannot be read: {type(error).__name__}: {error}"))
        self._end_sessions()

    def _end_sessions(self) -> None:
        with self._gate:
            sessions, self._sessions = list(self._sessions.values()), {}
            questions, self._questions = list(self._questions.values()), {}
        for session in sessions:
            session.fail(str(self.failure))
        for question in questions:
            question.set_exception(EngineError(str(self.failure)))
        self._receiver.close()
        self._sender.close()
        self._context.term()
        remove_private_folder(self.folder)

    def _take(self) -> None:
        self._sort(self._receiver.take())
        while self._backlog:
            message = self._backlog.popleft()
            if isinstance(message, ProgramEvents):
                session = self._sessions.get(message.program)
                for event in message.events if session is not None else ():
                    session.deliver(event)  # type: ignore[union-attr]  # None has no events

    def _sort(self, messages: Sequence[FromServer]) -> None:
        """Give answers to those who wait for them, and keep events for their turn."""
        for message in messages:
            if isinstance(message, ProgramEvents):
                self._backlog.append(message)
                continue
            with self._gate:
                question = self._questions.pop(message.id, None)
            if question is None:
                continue
            if isinstance(message, QuestionFailed):
                question.set_exception(EngineError(message.message))
            else:
                question.set_result(message)

    # -- the supervisor's thread ------------------------------------------------------------------------------------

    def _take_report(self, name: str, report: FromChild) -> None:
        if isinstance(report, Progress):
            self.loading[name] = report.text
        elif isinstance(report, Refused):
            self._supervisor.kill()
            self._fail(error_of(name, report))
        else:
            self._take_ready(name, report)

    def _take_ready(self, name: str, report: Ready) -> None:
        with self._gate:
            self._missing.discard(name)
            self.loading.pop(name, None)
            if report.model_info is not None:
                self._address = Address(report.model_info, report.port)
            if not self._missing:
                self._settled.set()

    def _take_end(self, end: ChildEnd) -> None:
        with self._gate:
            expected = self._closing or self.failure is not None
            was_ready = self._address is not None and not self._missing
        if expected:
            return
        error = EngineError(str(end))
        logger.error("%s", error)
        if was_ready:
            self._supervisor.end(Stop(_LAST_ANSWERS_S, str(error)), SERVER)
            self._on_failure(error)
            self._fail(error)
        else:
            self._supervisor.kill()
            self._fail(error)

    def _fail(self, reason: PalmetteError) -> None:
        """Nothing more is sent; what is open fails with `reason`. The first reason stays."""
        with self._gate:
            if self.failure is None:
                self.failure = reason
            self._settled.set()
        self._receiver.wake()


def _show(line: str) -> None:
    """A line of a process' log becomes one of this process'."""
    with suppress(OSError, ValueError, AttributeError):  # a standard error that is closed, or none
        print(line, file=sys.stderr, flush=True)
