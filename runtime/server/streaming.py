"""Answers as server-sent events, as many of them in one write as are there when the connection takes more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from palmette.runtime.program import Event, Node

from .answers import Exchange
from .errors import CLIENT_GONE, ApiError, ClientGoneError
from .responding import json_bytes

logger = logging.getLogger("palmette.server")

DONE = b"data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies are not to hold events back


WRITES_PER_S = 20_000
"""All streams together write about so often, and put what comes faster into fewer chunks: 64 of them each 3 ms."""


class StreamWriter(Protocol):
    """Writes events of the engine as server-sent events of a protocol."""

    @property
    def done(self) -> bool:
        """Whether the answer has ended."""

    def write(self, events: Sequence[Event]) -> bytes:
        """The bytes that these events come to, often none."""


@runtime_checkable
class FailureWriter(Protocol):
    """A writer of a protocol that has an event of its own for an answer that cannot go on."""

    def failed(self, error: ApiError) -> bytes: ...


def server_sent(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


async def stream(exchange: Exchange, writer: StreamWriter, nodes: Sequence[Node] = ()) -> Response:
    """The answer to a request, once its first events are there: what fails before them fails with a status.

    Args:
        nodes: to extend the exchange with first.

    Raises:
        ApiError, ClientGoneError: see `Exchange.events`; the exchange is closed.
    """
    try:
        if nodes:
            exchange.extend(nodes)
        first = await exchange.events()
    except BaseException:
        exchange.close()
        raise
    return EventStreamResponse(exchange, writer, first)


class EventStreamResponse(Response):
    """Sends what a writer makes of an exchange's events, and closes the exchange."""

    media_type = "text/event-stream"

    def __init__(self, exchange: Exchange, writer: StreamWriter, first: list[Event]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._exchange = exchange
        self._writer = writer
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_all(send)
        except ClientGoneError:
            scope["state"]["status"] = CLIENT_GONE
        finally:
            self._exchange.close()

    async def _rest(self, written_s: float) -> list[Event]:
        """Wait until this stream may write again, and return what has come till then."""
        rest_s = written_s + self._exchange.open_exchanges / WRITES_PER_S - time.monotonic()
        if rest_s <= 0:
            return []
        await asyncio.sleep(rest_s)
        return self._exchange.waiting()

    async def _send_all(self, send: Send) -> None:
        events, writer = self._first, self._writer
        body = writer.write(events)
        try:
            while not writer.done:
                written_s = 0.0
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    written_s = time.monotonic()
                events = await self._exchange.events()
                body = writer.write(events + await self._rest(written_s))
        except ClientGoneError:
            raise
        except ApiError as error:
            body = self._failure(error)
        except Exception:
            request_id = self._exchange.request_id
            logger.exception("request %s failed while its answer was sent", request_id)
            failure = ApiError(500, f"the server failed; its log says why under request id {request_id}")
            body = self._failure(failure)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _failure(self, error: ApiError) -> bytes:
        if isinstance(self._writer, FailureWriter):
            return self._writer.failed(error)
        return server_sent(json_bytes(error.body()))
