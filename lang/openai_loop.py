"""One thread with an event loop, on which a backend talks to its service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from palmette.runtime.errors import EngineError

Value = TypeVar("Value")


class LoopThread:
    """Starts with the first thing to do, and lives until `close`. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def call(self, action: Callable[[], object]) -> None:
        """Run `action` on the loop, soon.

        Raises:
            EngineError: the backend was closed.
        """
        self._running_loop().call_soon_threadsafe(action)

    def call_if_running(self, action: Callable[[], object]) -> None:
        """As `call`, and nothing where the thread has not started or has ended."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(action)

    def wait_for(self, work: Coroutine[Any, Any, Value], timeout_s: float) -> Value:
        """Run a coroutine on the loop and wait for what it returns.

        Raises:
            EngineError: the backend was closed, or this is the loop's own thread.
            TimeoutError: it took longer than `timeout_s`.
        """
        try:
            loop = self._running_loop()
            if threading.current_thread() is self._thread:
                raise EngineError("the backend's own thread must not wait for the service")
        except EngineError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result(timeout_s)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel what runs, run `last`, and end the thread. Closing twice is allowed."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_wind_up(last), loop).add_done_callback(
            lambda _: loop.call_soon_threadsafe(loop.stop)
        )
        if threading.current_thread() is not thread:
            thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise EngineError("this backend was closed; make a new one")
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(loop,), name="palmette-openai", daemon=True)
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _wind_up(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Cancel every task but this one, wait for them, and run `last`."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await last()
