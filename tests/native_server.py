"""A real HTTP server on loopback around an in-process engine, for tests of what speaks HTTP to it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from fastapi import FastAPI

from palmette.runtime.engine import Engine
from palmette.runtime.in_process import InProcessService
from palmette.runtime.server.app import create_app
from palmette.runtime.server.serving import HttpServer, listen
from palmette.runtime.server_settings import ServerSettings

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ServedEngine:
    """A server that runs. Its app belongs to the thread of its loop."""

    url: str
    app: FastAPI
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]

    def on_loop(self, ask: Callable[[], Answer]) -> Answer:
        """What `ask` returns on the server's loop."""
        answer: Future[Answer] = Future()
        self.loop.call_soon_threadsafe(lambda: answer.set_result(ask()))
        return answer.result(60)


@contextmanager
def served(engine: Engine, settings: ServerSettings | None = None, *, port: int = 0) -> Iterator[ServedEngine]:
    """A server around `engine` on a port of its own, or on `port`; it is stopped at the end, and cuts what is open."""
    started: queue.SimpleQueue[ServedEngine | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            asyncio.run(_serve(engine, settings or ServerSettings(), port, started))
        except BaseException as error:
            started.put(error)

    thread = threading.Thread(target=run, name="served-engine")
    thread.start()
    server = started.get(timeout=60)
    if isinstance(server, BaseException):
        raise server
    try:
        yield server
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


async def _serve(
    engine: Engine, settings: ServerSettings, port: int, started: queue.SimpleQueue[ServedEngine | BaseException]
) -> None:
    loop = asyncio.get_running_loop()
    app = create_app(InProcessService(engine), settings)
    listener = listen("127.0.0.1", port)
    server = HttpServer(app, settings)
    serving = await server.begin(listener)

    def end() -> None:
        app.state.programs.close("the server ends")
        server.drain(0.0)

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # it has ended already
            loop.call_soon_threadsafe(end)

    url = f"{settings.scheme}://127.0.0.1:{listener.getsockname()[1]}"
    started.put(ServedEngine(url, app, loop, stop))
    await serving


def wait_until_empty(engine: Engine) -> None:
    """Wait until no request runs, and every page is free or the cache's; locked only while a program is open."""
    for _ in range(1500):
        stats = engine.stats()
        idle = not (stats.running or stats.waiting or stats.compiling)
        kept = stats.protected_pages if engine.open_sessions else 0  # what open programs will go on from
        if idle and stats.free_pages + stats.evictable_pages + kept == stats.total_pages:
            return
        time.sleep(0.02)
    raise AssertionError(f"requests go on: {stats}")
