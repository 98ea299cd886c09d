"""What HTTP costs: CPU a request of a one-token answer beside a bare FastAPI echo, and tokens a second of many streams.

The engine is scripted: it answers at once, on the server's own thread, so that all the time of that thread is the
server's. The CPU is that thread's own (its CPU clock); the clients run in another process. Writes JSON.

    python benchmarks/http_overhead.py --requests 3000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from palmette.runtime.messages import CacheTree, SchedulerStats, SessionOptions
from palmette.runtime.program import Completion, Delta, Generate, Generated, ModelInfo, Node
from palmette.runtime.server.app import create_app
from palmette.runtime.server.serving import HttpServer, listen
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EventSink
from palmette.runtime.tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": ("/echo", {"text": "The capital of France is"}),
    "completions": ("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "The capital of France?"}], "max_tokens": 1, "temperature": 0},
    ),
}


class ScriptedService:
    """An engine that says " a" as often as it may, a step for all streams together; whole answers at once."""

    def __init__(self, tokenizer: Tokenizer, step_s: float) -> None:
        self.tokenizer = tokenizer
        self.model_info = ModelInfo(
            name="scripted",
            context_length=4096,
            vocab_size=len(tokenizer.token_bytes),
            chat_template=TEMPLATE,
            special_tokens=("<|im_start|>", "<|im_end|>"),
        )
        self.steps = 0
        self._step_s = step_s
        self._running: dict[ScriptedSession, int] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def open_sessions(self) -> int:
        return len(self._running)

    def open(self, events: EventSink, options: SessionOptions | None = None) -> ScriptedSession:
        return ScriptedSession(self, events)

    def start(self, session: ScriptedSession, tokens: int) -> None:
        self._running[session] = tokens
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def stop(self, session: ScriptedSession) -> None:
        self._running.pop(session, None)

    async def _run(self) -> None:
        while self._running:
            await asyncio.sleep(self._step_s)
            self.steps += 1
            for session, left in list(self._running.items()):
                session.events(Delta(session.node, " a"))
                self._running[session] = left - 1
                if left == 1:
                    self.stop(session)
                    session.finish()

    async def flush_cache(self) -> int:
        return 0

    async def stats(self) -> SchedulerStats:
        return SchedulerStats()

    async def cache_tree(self, limit: int) -> CacheTree:
        return CacheTree(())


class ScriptedSession:
    """One program of the scripted engine, which runs its last generation."""

    def __init__(self, service: ScriptedService, events: EventSink) -> None:
        self.events = events
        self.node = 0
        self._tokens = 0
        self._service = service

    def extend(self, nodes: Sequence[Node]) -> None:
        node = nodes[-1]
        assert isinstance(node, Generate)
        self.node, self._tokens = node.id, node.params.max_tokens
        if node.stream:
            self._service.start(self, self._tokens)
        else:
            asyncio.get_running_loop().call_soon(self.finish)

    def finish(self) -> None:
        completion = Completion(
            text=" a" * self._tokens,
            token_ids=(5,) * self._tokens,
            finish_reason="length",
            prompt_tokens=8,
            cached_tokens=7,
            completion_tokens=self._tokens,
        )
        self.events(Generated(self.node, (completion,)))

    def abort(self) -> None:
        self._service.stop(self)

    def close(self) -> None:
        self._service.stop(self)


class Echo(BaseModel):
    """What the bare app takes and returns."""

    text: str


def echo_app() -> FastAPI:
    """FastAPI as its tutorial shows it."""
    app = FastAPI()

    @app.post("/echo")
    async def echo(body: Echo) -> Echo:
        return body

    return app


# -- the server -----------------------------------------------------------------------------------------------------


class ServerThread:
    """Both apps on one loop in one thread, whose CPU clock is read."""

    def __init__(self, tokenizer: Tokenizer, step_s: float) -> None:
        self._tokenizer = tokenizer
        self._step_s = step_s
        self._ready = threading.Event()
        self.ports: dict[str, int] = {}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        if not self._ready.wait(120):
            raise SystemExit("the server did not start")

    def cpu_s(self) -> float:
        assert self.thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))

    def _run(self) -> None:
        try:
            import uvloop
        except ImportError:
            asyncio.run(self._serve())
        else:
            uvloop.run(self._serve())

    async def _serve(self) -> None:
        settings = ServerSettings()
        service = ScriptedService(self._tokenizer, self._step_s)
        servings = []
        for name, app in (("echo", echo_app()), ("palmette", create_app(service, settings))):
            listener = listen("127.0.0.1", 0)
            servings.append(await HttpServer(app, settings).begin(listener))
            self.ports[name] = listener.getsockname()[1]
        self._ready.set()
        await asyncio.gather(*servings)


# -- the clients, in a process of their own ---------------------------------------------------------------------------


def _request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def _ask(port: int, request: bytes, times: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()


async def _listen(port: int, request: bytes) -> tuple[int, int]:
    """The tokens and the chunks of one stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    received = bytearray()
    while not received.endswith(b"0\r\n\r\n"):
        received += await reader.read(1 << 16)
    writer.close()
    assert b"[DONE]" in received
    return received.count(b" a"), received.count(b"data: ")


async def _clients(kind: str, port: int, connections: int, times: int, tokens: int) -> dict[str, Any]:
    path, body = BODIES[kind]
    if not tokens:
        began = time.perf_counter()
        await asyncio.gather(*(_ask(port, _request(path, body), times) for _ in range(connections)))
        return {"elapsed_s": time.perf_counter() - began}
    request = _request(path, {**body, "max_tokens": tokens, "stream": True})
    began = time.perf_counter()
    counts = await asyncio.gather(*(_listen(port, request) for _ in range(connections)))
    elapsed_s = time.perf_counter() - began
    return {
        "elapsed_s": elapsed_s,
        "tokens": sum(count for count, _ in counts),
        "chunks": sum(chunks for _, chunks in counts),
    }


def run_clients(kind: str, port: int, *, connections: int, times: int = 1, tokens: int = 0) -> dict[str, Any]:
    """What a process of clients measured."""
    arguments = [kind, str(port), str(connections), str(times), str(tokens)]
    done = subprocess.run(
        [sys.executable, __file__, "--client", *arguments], check=True, capture_output=True, text=True, timeout=600
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# -- the measurement --------------------------------------------------------------------------------------------------


def cpu_per_request(server: ServerThread, requests: int, connections: int, rounds: int) -> dict[str, float]:
    """Microseconds of the server's thread for one request of each kind: the least of several rounds, taken in turn."""
    least: dict[str, float] = {}
    for _ in range(rounds + 1):  # the first warms up
        for kind in BODIES:
            port = server.ports["echo" if kind == "echo" else "palmette"]
            before = server.cpu_s()
            run_clients(kind, port, connections=connections, times=requests // connections)
            cost = (server.cpu_s() - before) / requests * 1e6
            least[kind] = min(cost, least.get(kind, cost))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--step-ms", type=float, default=0.0, help="time of a step of the scripted engine")
    parser.add_argument("--model", type=Path, required="--client" not in sys.argv, help="a folder with a tokenizer")
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        kind, *numbers = given.client
        print(json.dumps(asyncio.run(_clients(kind, *map(int, numbers)))))
        return
    server = ServerThread(Tokenizer.load(given.model), given.step_ms / 1000)
    cost = cpu_per_request(server, given.requests, given.connections, given.rounds)
    result: dict[str, Any] = {
        "cpu_us_per_request": {kind: round(us, 1) for kind, us in cost.items()},
        "times_echo": {kind: round(us / cost["echo"], 2) for kind, us in cost.items() if kind != "echo"},
    }
    for kind in ("completions", "chat"):
        before = server.cpu_s()
        found = run_clients(kind, server.ports["palmette"], connections=given.streams, tokens=given.tokens)
        result[f"streams_{kind}"] = {
            "tokens_per_s": round(given.streams * given.tokens / found["elapsed_s"]),
            "tokens_per_cpu_s": round(given.streams * given.tokens / (server.cpu_s() - before)),
            "tokens_per_chunk": round(found["tokens"] / found["chunks"], 2),
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
