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
from collections.abc import Iterator, Sequence

import msgspec

from palmette.runtime.channel import (
    ProgramEvent,
    ProgramOptions,
)
from palmette.runtime.errors import EngineError

from .backend import EventSink
from .http_connection import LOST, Answer, HttpClient, ServerAddress, stream
from .http_patience import Patience
from .http_session import HttpSession, Outgoing

logger = logging.getLogger("palmette.http")

IDLE_TIMEOUT_S = 20.0
"""So long a server keeps programs whose client does not listen."""

SILENCE_S = 45.0
"""A stream without a byte for so long is broken: the server sends one three times as often."""

MOST_BYTES = 1 << 20
"""About so much goes into one request."""

LINGER_S = 0.05
"""So long the news that a program has ended waits for something to go along with."""

_LAST_WORDS_S = 3.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[ProgramEvent]).decode


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
        self._outbox: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()
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

    def open(self, events: EventSink, program: str | None = None) -> HttpSession:
        session = HttpSession(self, next(self._numbers), events, program)
        self._sessions[session.number] = session
        return session

    def check(self) -> None:
        """Raise EngineError where nothing can be sent any more."""
        if self._failure is not None:
            raise EngineError(str(self._failure)) from self._failure.__cause__

    def send(self, outgoing: Outgoing) -> None:
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

    def _batches(self) -> Iterator[list[Outgoing]]:
        """What there is to send, as much as goes into one request."""
        while self._failure is None:
            batch: list[Outgoing] = []
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

    def _send_batch(self, batch: Sequence[Outgoing], numbers: Iterator[int]) -> None:
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
        patience = Patience()
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
        patience = Patience()
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

    def _receive(self, patience: Patience) -> bool:
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


def _server_sent(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Kind, id and data of each server-sent event that has data."""
    rest = b""
    for chunk in chunks:
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
            if b"data" in fields:
                yield fields.get(b"event", b""), fields.get(b"id", b""), fields[b"data"]
