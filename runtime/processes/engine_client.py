"""The tokenizer's side of an engine in processes: the request trees of all programs, on a server's event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.jobs import Job
from palmette.runtime.messages import (
    USUAL_OPTIONS,
    Answer,
    CacheTree,
    FromScheduler,
    FromTree,
    Question,
    RequestFailure,
    SchedulerStats,
    SessionOptions,
    StepOutput,
    ToScheduler,
)
from palmette.runtime.program import ModelInfo
from palmette.runtime.program_host import ProgramHost
from palmette.runtime.service import EventSink, ServiceSession
from palmette.runtime.tokenizer import Tokenizer

from .sockets import Sender, encode

_RETRY_AFTER_S = 5.0
"""When an engine that is gone may have been started anew."""


class EngineClient:
    """An `EngineService` whose scheduler is another process.

    All methods are for the thread of the loop that runs while it is made. What it has for the scheduler goes out once a
    turn of the loop, as one frame.
    """

    def __init__(
        self, scheduler: Sender[ToScheduler], tokenizer: Tokenizer, model_info: ModelInfo, *, seed: int | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._model_info = model_info
        self._outgoing: list[bytes] = []
        self._numbers = itertools.count()
        self._questions: dict[int, asyncio.Future[Answer]] = {}
        self._failure: EngineError | None = None
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="palmette-encoder")
        self._host = ProgramHost(tokenizer, send=self._send, seed=seed, run_aside=self._run_aside)

    @property
    def model_info(self) -> ModelInfo:
        return self._model_info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def open_sessions(self) -> int:
        """How many sessions are open: those of HTTP clients, and those of the parent's programs."""
        return len(self._host)

    def open(self, events: EventSink, options: SessionOptions = USUAL_OPTIONS) -> ServiceSession:
        """Open an empty tree; see `EngineService.open`."""
        self._check()
        return self._host.open(events, options)

    async def flush_cache(self) -> int:
        """See `EngineService.flush_cache`."""
        return (await self.ask("flush_cache")).tokens or 0

    async def stats(self) -> SchedulerStats:
        """See `EngineService.stats`."""
        return (await self.ask("stats")).stats or SchedulerStats()

    async def cache_tree(self, limit: int) -> CacheTree:
        """See `EngineService.cache_tree`."""
        return (await self.ask("cache_tree", limit)).cache or CacheTree(())

    async def ask(self, what: Literal["stats", "flush_cache", "cache_tree"], limit: int = 0) -> Answer:
        """The scheduler's answer to a question.

        Raises:
            EngineError: the engine has failed.
        """
        self._check()
        number = next(self._numbers)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._questions[number] = answer
        try:
            self._send(Question(number, what, limit))
            return await answer
        finally:
            self._questions.pop(number, None)

    def take(self, message: FromScheduler) -> None:
        """Take in news of the scheduler's."""
        if isinstance(message, StepOutput):
            self._host.deliver(message.outputs)
            return
        answer = self._questions.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def fail(self, message: str) -> None:
        """The engine is gone: everything that is open fails, and what comes later is refused."""
        if self._failure is None:
            self._failure = EngineError(message)
        self._host.fail_all(RequestFailure("EngineError", message, _RETRY_AFTER_S))
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(EngineError(message))

    def _check(self) -> None:
        if self._failure is not None:
            raise EngineError(str(self._failure))

    def _send(self, message: FromTree | Question) -> None:
        """Have a message sent at the end of this turn of the loop.

        Raises:
            RequestError: it holds something that cannot be sent.
        """
        try:
            data = encode(message)
        except UnicodeEncodeError as error:
            found = error.object[error.start : error.start + 1]
            raise RequestError(
                f"the request holds {found!r}, half of a character, which no text may; leave it out"
            ) from None
        except (OverflowError, TypeError) as error:
            raise RequestError(f"the request cannot be sent to the scheduler: {error}") from None
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        self._scheduler.send_encoded(outgoing)

    def _run_aside(self, work: Callable[[], Job], then: Callable[[Future[Job]], None]) -> None:
        job = self._aside.submit(work)
        job.add_done_callback(lambda done: self._loop.call_soon_threadsafe(then, done))
