"""A scripted OpenAI service over real HTTP, for exact tests of clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Body = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A request that the service got: its path, body and headers, these in small letters."""

    path: str
    body: Body
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Refusal:
    """An HTTP error."""

    status: int
    message: str = "no"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Says:
    """An answer to a completion or chat completion.

    Attributes:
        texts: one an answer.
        pieces: how many pieces of a streamed answer.
        breaks_after: end the connection after so many pieces.
        choice: further members of every choice.
        waits_for: the answer is held back until this is set.
    """

    texts: tuple[str, ...]
    finish: str = "stop"
    pieces: int = 2
    breaks_after: int | None = None
    choice: Mapping[str, Any] = field(default_factory=dict)
    message: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 3})
    waits_for: threading.Event | None = None


Reply = Says | Refusal | Body
Script = Callable[[Asked], Reply] | Sequence[Reply]


def says(*texts: str, **fields: Any) -> Says:
    """`Says` with these texts."""
    return Says(texts, **fields)


class FakeOpenAI:
    """Answers from a script: a list of replies in order, or a function of the request. A context manager.

    Attributes:
        asked: what was asked so far, in order; GET requests too, with an empty body.
        most_open: most requests that were open at once.
    """

    def __init__(self, script: Script) -> None:
        self.asked: list[Asked] = []
        self.most_open = 0
        self._open = 0
        self._script = script
        self._lock = threading.Lock()
        self._given = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def posts(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.body]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply(self, asked: Asked) -> Reply:
        """The next reply of the script."""
        with self._lock:
            self.asked.append(asked)
            place = self._given
            if asked.body:
                self._given += 1
        if not asked.body:
            return Refusal(404, "there is no such path")
        if callable(self._script):
            return self._script(asked)
        return self._script[place] if place < len(self._script) else Refusal(400, "the script has no answer left")

    def opened(self, change: int) -> None:
        with self._lock:
            self._open += change
            self.most_open = max(self.most_open, self._open)


def _handler(service: FakeOpenAI) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
            pass

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, body: Body) -> None:
            service.opened(1)
            headers = {name.lower(): value for name, value in self.headers.items()}
            path = self.path.removeprefix("/v1")
            try:
                self._send(service.reply(Asked(path, body, headers)), path, body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                service.opened(-1)

        def _send(self, reply: Reply, path: str, body: Body) -> None:
            if isinstance(reply, Refusal):
                error = {"message": reply.message, "type": "invalid_request_error", "param": None, "code": reply.code}
                self._send_json(reply.status, {"error": error}, reply.headers)
                return
            if isinstance(reply, Says) and reply.waits_for is not None:
                reply.waits_for.wait(60)
            if isinstance(reply, Says) and body.get("stream"):
                self._send_events(reply, path)
            else:
                self._send_json(200, _whole(reply, path) if isinstance(reply, Says) else reply, {})

        def _send_json(self, status: int, value: Body, headers: Mapping[str, str]) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            for name, text in {**headers, "content-type": "application/json", "content-length": str(len(data))}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        def _send_events(self, reply: Says, path: str) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            for place, event in enumerate(_events(reply, path)):
                if place == reply.breaks_after:
                    self.wfile.write(b"data: {half a line\n\n")
                    return
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

    return Handler


def _whole(reply: Says, path: str) -> Body:
    choices = []
    for index, text in enumerate(reply.texts):
        said = {"text": text} if path == "/completions" else {"message": {"content": text, **reply.message}}
        choices.append({"index": index, **said, "finish_reason": reply.finish, **reply.choice})
    return {"id": "x", "choices": choices, "usage": dict(reply.usage)}


def _events(reply: Says, path: str) -> list[Body]:
    events: list[Body] = []
    for index, text in enumerate(reply.texts):
        if reply.message:
            events.append({"choices": [{"index": index, "delta": dict(reply.message), "finish_reason": None}]})
        size = max(1, -(-len(text) // reply.pieces))
        for at in range(0, len(text), size):
            piece = text[at : at + size]
            said: Body = {"text": piece} if path == "/completions" else {"delta": {"content": piece}}
            events.append({"choices": [{"index": index, **said, "finish_reason": None}]})
        ended: Body = {"text": ""} if path == "/completions" else {"delta": {}}
        events.append({"choices": [{"index": index, **ended, "finish_reason": reply.finish, **reply.choice}]})
    return [*events, {"choices": [], "usage": dict(reply.usage)}]
