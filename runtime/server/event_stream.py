"""A response of server-sent events that ends with its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies that collect answers would hold events back
}


class EventStream(Response):
    """Sends what `chunks` yields, each in one write, until it ends or the client goes.

    Args:
        first: sent before them.
        on_gone: called where the client went before the end.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        first: bytes = b"",
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._chunks = chunks
        self._first = first
        self._on_gone = on_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        watching = asyncio.ensure_future(_until_gone(receive))
        complete = False
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                complete = True
        except OSError:  # the client went while something was being sent
            return
        finally:
            for task in (sending, watching):
                task.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
            if isinstance(self._chunks, AsyncGenerator):
                await self._chunks.aclose()
            if not complete:
                self._on_gone()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._first:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
