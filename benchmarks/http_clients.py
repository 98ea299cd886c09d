"""Clients of a server, for measuring it: they send requests that are bytes already and look at no more than they must.

`run_clients` runs them in a process of their own, so that their time is not the server's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, cast

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": ("/echo", {"text": "What comes after ########?"}),
    "completions": ("/v1/completions", {"prompt": "What comes after ########?", "max_tokens": 1, "temperature": 0}),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "What comes after ########?"}], "max_tokens": 1, "temperature": 0},
    ),
}
"""Path and body of each kind of request. A number stands in place of the signs, another one in every request."""

_NUMBERS = itertools.count(random.randrange(10_000_000))

_LAST_CHUNK = b"0\r\n\r\n"


class Asker(asyncio.Protocol):
    """One connection that asks the same again and again, the next time when it has its answer."""

    def __init__(self, request: bytes, times: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._left = times
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data
        head, found, body = received.partition(b"\r\n\r\n")
        if not found:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(AssertionError(received))
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._received = b""
        self._left -= 1
        if self._left:
            self._ask()
        else:
            self.done.set_result(None)

    def _ask(self) -> None:
        self._transport.write(_numbered(self._request))


class Listener(asyncio.Protocol):
    """One connection that takes one stream; it is looked at when all of it is there."""

    def __init__(self, request: bytes) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = bytearray()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(_numbered(self._request))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.received.endswith(_LAST_CHUNK):
            self.done.set_result(None)

    @property
    def texts(self) -> list[str]:
        """The text of each chunk that has any."""
        assert b"[DONE]" in self.received, bytes(self.received)
        events = [line[6:] for line in self.received.split(b"\n") if line.startswith(b"data: {")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        texts = [choice.get("text") or choice.get("delta", {}).get("content") for choice in choices]
        return [text for text in texts if text]


def run_clients(kind: str, port: int, *, connections: int, times: int = 1, tokens: int = 0) -> dict[str, Any]:
    """What a process of clients measured: `elapsed_s`, and of streams how many characters came in how many chunks.

    Args:
        kind: of request, see `BODIES`.
        times: requests of each connection, one after the other.
        tokens: of each answer, which is then streamed; 0 asks for whole answers of one token.
    """
    arguments = {"kind": kind, "port": port, "connections": connections, "times": times, "tokens": tokens}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(arguments)], check=True, capture_output=True, text=True, timeout=600
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _request(kind: str, **more: Any) -> bytes:
    path, body = BODIES[kind]
    data = json.dumps({**body, **more}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def _numbered(request: bytes) -> bytes:
    return request.replace(b"########", b"%08d" % next(_NUMBERS))


async def _ask(given: Mapping[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    request = _request(given["kind"])
    began = time.perf_counter()
    for_all = [
        await loop.create_connection(lambda: Asker(request, given["times"]), "127.0.0.1", given["port"])
        for _ in range(given["connections"])
    ]
    await asyncio.gather(*(asker.done for _, asker in for_all))
    return {"elapsed_s": time.perf_counter() - began}


async def _listen(given: Mapping[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    request = _request(given["kind"], max_tokens=given["tokens"], stream=True)
    began = time.perf_counter()
    for_all = [
        await loop.create_connection(lambda: Listener(request), "127.0.0.1", given["port"])
        for _ in range(given["connections"])
    ]
    await asyncio.gather(*(listener.done for _, listener in for_all))
    elapsed_s = time.perf_counter() - began
    texts = [listener.texts for _, listener in for_all]
    return {
        "elapsed_s": elapsed_s,
        "characters": sum(len(text) for each in texts for text in each),
        "chunks": sum(map(len, texts)),
    }


def main() -> None:
    given = json.loads(sys.argv[1])
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    print(json.dumps(run(_listen(given) if given["tokens"] else _ask(given))))


if __name__ == "__main__":
    main()
