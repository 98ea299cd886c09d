"""All programs of one client of a server: what they say goes out in few requests, what comes back on one stream.

Two threads, however many programs run. The sender takes everything that programs have said since its last request and
sends it as one; the receiver reads the stream of events and hands each to its program. Requests carry numbers and
events have ids, so both can be repeated after a lost connection: nothing is done twice, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from palmette.constrained.errors import PalmetteError
from palmette.runtime.channel import (
    CloseProgram,
    ExtendProgram,
    OpenProgram,
    ProgramEvent,
    ProgramOptions,
)
from palmette.runtime.errors import EngineError
from palmette.runtime.program import Delta, Event, Failed, Generate, Node, Select

from .backend import EventSink
from .http_connection import LOST, Answer, HttpClient, ServerAddress, stream

logger = logging.getLogger("palmette.http")

RECONNECT_S = 3.0
"""So long a server that does not answer is asked again before it counts as gone."""

IDLE_TIMEOUT_S = 20.0
"""So long a server keeps programs whose client does not listen."""

SILENCE_S = 45.0
"""A stream without a byte for so long is broken: the server sends one three times as often."""

MOST_BYTES = 1 << 20
"""About so much goes into one request."""

LINGER_S = 0.05
"""So long the news that a program has ended waits for something to go along with."""

_PAUSE_S = 0.05
_LAST_WORDS_S = 3.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[ProgramEvent]).decode


class HttpSession:
    """One program's tree on a server."""

    def __init__(self, channel: HttpChannel, number: int, events: EventSink) -> None:
        self.number = number
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
                text = _encode(OpenProgram(program=self.number)) + b"," + text
            self._unfinished.update(waited_for)
            self._channel.send(_Outgoing(text, self, waited_for))

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
            self._channel.send(_Outgoing(text, self, (), urgent=bool(self._unfinished)))

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
class _Outgoing:
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


class HttpChannel:
    """The connection of all sessions of a backend.

    Raises:
        EngineError: the server does not answer, or refuses.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._client = HttpClient(address)
        try:
            answer = self._client.ask("POST", "/channels", _encode(ProgramOptions(idle_timeout_s=IDLE_TIMEOUT_S)))
        except LOST as error:
            raise address.unreachable(error) from error
        if answer.status != 201:
            raise answer.error()
        self._path = f"/channels/{msgspec.json.decode(answer.body)['id']}"
        self._numbers = itertools.count()
        self._sessions: dict[int, HttpSession] = {}
        self._outbox: queue.SimpleQueue[_Outgoing | None] = queue.SimpleQueue()
        self._failure: EngineError | None = None
        self._failing = threading.Lock()
        self._last_id = b"0"
        self._threads = [
            threading.Thread(target=self._send_all, name="palmette-http-sender", daemon=True),
            threading.Thread(target=self._receive_all, name="palmette-http-receiver", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def open(self, events: EventSink) -> HttpSession:
        session = HttpSession(self, next(self._numbers), events)
        self._sessions[session.number] = session
        return session

    def check(self) -> None:
        """Raise EngineError where nothing can be sent any more."""
        if self._failure is not None:
            raise EngineError(str(self._failure)) from self._failure.__cause__

    def send(self, outgoing: _Outgoing) -> None:
        self._outbox.put(outgoing)

    def forget(self, session: HttpSession) -> None:
        self._sessions.pop(session.number, None)

    def close(self) -> None:
        """End all programs, here and on the server."""
        answering = self._failure is None
        self._fail(EngineError("the backend was closed; make another one"))
        if answering:
            with contextlib.suppress(*LOST):
                self._client.ask("DELETE", self._path)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LAST_WORDS_S)
        self._client.close()

    def _fail(self, reason: EngineError) -> None:
        """End every program with an error; the first reason stays."""
        with self._failing:
            if self._failure is not None:
                return
            self._failure = reason
        self._outbox.put(None)
        for session in list(self._sessions.values()):
            session.fail(reason)
        self._sessions.clear()

    def _fail_unforeseen(self, doing: str, error: Exception) -> None:
        if self._failure is None:
            logger.exception("%s failed", doing)
        self._fail(EngineError(f"{doing} failed: {type(error).__name__}: {error}"))

    # -- the sender's thread ----------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        numbers = itertools.count(1)
        try:
            for batch in self._batches():
                self._send_batch(batch, numbers)
        except EngineError as error:
            self._fail(error)
        except Exception as error:
            self._fail_unforeseen("sending to the server", error)
        finally:
            self._client.close()

    def _batches(self) -> Iterator[list[_Outgoing]]:
        """What there is to send, as much as goes into one request."""
        while self._failure is None:
            batch: list[_Outgoing] = []
            size = 0
            outgoing = self._outbox.get()
            while outgoing is not None:
                batch.append(outgoing)
                size += len(outgoing.text)
                if size > MOST_BYTES:
                    break
                waits = not any(each.urgent for each in batch)
                try:
                    outgoing = self._outbox.get(waits, LINGER_S)
                except queue.Empty:
                    break
            if batch:
                yield batch

    def _send_batch(self, batch: Sequence[_Outgoing], numbers: Iterator[int]) -> None:
        """Send a batch; one that is refused is sent message by message, so that only the bad one is."""
        body = b"[" + b",".join(outgoing.text for outgoing in batch) + b"]"
        answer = self._post(body, next(numbers))
        if answer.status == 200:
            return
        if answer.status in (401, 404):
            raise answer.error()
        if len(batch) == 1:
            batch[0].session.fail(answer.refusal(), batch[0].node_ids)
            return
        for outgoing in batch:
            self._send_batch([outgoing], numbers)

    def _post(self, body: bytes, number: int) -> Answer:
        """The answer to a request, which is repeated while the server cannot be reached or is too busy."""
        path = f"{self._path}/messages/{number}"
        patience = _Patience()
        while True:
            try:
                answer = self._client.ask("PUT", path, body)
            except LOST as error:
                patience.wait(error)
                continue
            if answer.status not in (429, 503) or not patience.wait_for(answer):
                return answer

    # -- the receiver's thread --------------------------------------------------------------------------------------

    def _receive_all(self) -> None:
        patience = _Patience()
        try:
            while self._failure is None:
                try:
                    if self._receive(patience):
                        return
                    patience.wait(None)
                except LOST as error:
                    patience.wait(error)
        except EngineError as error:
            self._fail(error)
        except Exception as error:
            self._fail_unforeseen("receiving events", error)

    def _receive(self, patience: _Patience) -> bool:
        """Read one connection's events; True at the channel's end."""
        headers = {"Last-Event-ID": self._last_id.decode()}
        with stream(self._address, f"{self._path}/events", headers, silence_s=SILENCE_S) as (answer, chunks):
            if answer.status != 200:
                raise answer.error()
            for kind, event_id, data in _server_sent(chunks):
                patience.reset()
                if kind == b"end":
                    reason = msgspec.json.decode(data)["reason"]
                    self._fail(EngineError(f"the server has ended this client's programs: {reason}"))
                    return True
                for number, event in map(msgspec.structs.astuple, _decode(data)):
                    session = self._sessions.get(number)
                    if session is not None:
                        session.deliver(event)
                self._last_id = event_id
        return False


class _Patience:
    """How long a server that does not answer is waited for."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def reset(self) -> None:
        self._since_s = None

    def wait(self, error: Exception | None) -> None:
        """Pause before the next try.

        Raises:
            EngineError: there were enough.
        """
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > RECONNECT_S:
            why = "it closed the connection" if error is None else f"{type(error).__name__}: {error}"
            raise EngineError(
                f"the server does not answer any more ({why}); what ran there is lost. Is it still running?"
            ) from error
        time.sleep(_PAUSE_S)

    def wait_for(self, answer: Answer) -> bool:
        """Pause as a busy server asks for; False when there were enough pauses."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > RECONNECT_S:
            return False
        with contextlib.suppress(ValueError):
            time.sleep(min(1.0, float(answer.retry_after or _PAUSE_S)))
        return True


def _server_sent(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Kind, id and data of each server-sent event that has data."""
    rest = b""
    for chunk in chunks:
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
            if b"data" in fields:
                yield fields.get(b"event", b""), fields.get(b"id", b""), fields[b"data"]


def _ignore(event: Event) -> None:
    """The sink of a closed session."""
