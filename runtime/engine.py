"""The engine in process: one thread that runs the scheduler, and the sessions that programs open on it."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from .clock import Clock
from .detokenizer import Detokenizer
from .errors import EngineError
from .intake import Intake
from .jobs import Job
from .messages import (
    USUAL_OPTIONS,
    Answer,
    CacheTree,
    FromScheduler,
    Question,
    RequestFailure,
    SchedulerStats,
    SessionOptions,
    ToScheduler,
)
from .program import Event, ModelInfo, Node, Text
from .program_host import ABORTED, HostedProgram, NodeIds, ProgramHost
from .request_tree import nobody
from .scheduler import Scheduler
from .scheduler_loop import SchedulerLoop
from .service import EventSink
from .tokenizer import Tokenizer

logger = logging.getLogger("palmette.engine")


class Engine:
    """Runs programs in this process. A language backend and a context manager.

    All state of the scheduler and of the request trees belongs to the engine's thread; other threads send it commands.
    `palmette.runtime.launch(processes=False)` builds one.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        model_info: ModelInfo,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
        overlap: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._model_info = model_info
        self._scheduler = scheduler
        self._inbox = _CommandInbox()
        self._gate = threading.Lock()  # held to send a command, and to close the inbox for good
        self._closed: EngineError | None = None
        self._questions: dict[int, Future[Answer]] = {}
        self._question_ids = itertools.count()
        self._detokenizer = Detokenizer(tokenizer.token_bytes)
        self._intake = Intake(tokenizer.token_bytes, tokenizer.end_ids, self._inbox.wake, page_size=scheduler.page_size)
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="palmette-encoder")
        self._host = ProgramHost(
            tokenizer, send=self._inbox.messages.append, seed=seed, clock=clock, run_aside=self._run_aside
        )
        self._loop = SchedulerLoop(scheduler, self._intake, self._inbox, self._take_news, overlap=overlap, clock=clock)
        self._thread = threading.Thread(target=self._run, name="palmette-engine", daemon=True)
        self._thread.start()

    @property
    def model_info(self) -> ModelInfo:
        return self._model_info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def token_owners(self, texts: Sequence[Text], *, start: bool) -> list[int]:
        """For each token of constant text that stands together, the id of the node in which it begins.

        Args:
            start: a prompt begins with it.
        """
        return self._tokenizer.owners_of(texts, start=start)

    @property
    def open_sessions(self) -> int:
        """How many sessions are open."""
        return len(self._host)

    def open(
        self, events: EventSink, options: SessionOptions = USUAL_OPTIONS, *, program: str | None = None
    ) -> EngineSession:
        """Open an empty request tree whose events go to `events`, called from the engine's thread.

        Raises:
            EngineError: the engine was shut down, or it failed.
        """
        session = EngineSession(self, events)
        named = options.of_program(program)
        self._send(lambda: session.begin(self._host, named))
        return session

    def flush_cache(self) -> int:
        """Drop every prefix that no running request uses; returns the number of tokens dropped."""
        dropped = self._ask("flush_cache").tokens
        assert dropped is not None
        return dropped

    def stats(self) -> SchedulerStats:
        """Counts of the scheduler at this moment: queues, running batch, pages, cache."""
        stats = self._ask("stats").stats
        assert stats is not None
        return stats

    def cache_tree(self, limit: int) -> CacheTree:
        """Up to `limit` nodes of the radix cache, the most used first."""
        tree = self._ask("cache_tree", limit).cache
        assert tree is not None
        return tree

    def check_invariants(self) -> None:
        """Raise AssertionError unless the scheduler accounts for everything. Waits for the step in flight."""
        checked: Future[None] = Future()

        def check() -> None:
            try:
                self._scheduler.check_invariants()
                checked.set_result(None)
            except AssertionError as error:
                checked.set_exception(error)

        self._send(check)
        checked.result()

    def shutdown(self) -> None:
        """Fail what still runs and stop the engine's thread. Calling it twice is allowed."""
        self._close(EngineError("the engine was shut down; launch another one"))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _send(self, command: Callable[[], None]) -> None:
        """Have the engine's thread run `command`."""
        with self._gate:
            if self._closed is not None:
                raise EngineError(str(self._closed)) from self._closed.__cause__
            self._inbox.put(command)

    def _ask(self, what: Literal["stats", "flush_cache", "cache_tree"], limit: int = 0) -> Answer:
        """The scheduler's answer to a question. An event sink, which its thread calls, is answered at once."""
        question = Question(next(self._question_ids), what, limit)
        if threading.current_thread() is self._thread:
            return self._loop.answer(question)
        future: Future[Answer] = Future()

        def ask() -> None:
            self._questions[question.id] = future
            self._inbox.messages.append(question)

        self._send(ask)
        return future.result()

    def _close(self, reason: EngineError) -> None:
        """Take no more commands; the first reason stays."""
        with self._gate:
            if self._closed is None:
                self._closed = reason
                self._loop.stop()

    # -- the engine's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # a thread that ends without telling would leave every program waiting
            logger.exception("the engine failed")
            reason = EngineError(f"the engine failed: {error}")
            reason.__cause__ = error
            self._close(reason)
        self._end()

    def _take_news(self, news: FromScheduler) -> None:
        if isinstance(news, Answer):
            self._questions.pop(news.id).set_result(news)
        else:
            self._host.deliver(self._detokenizer.process(news).outputs)

    def _run_aside(self, make: Callable[[], Job], then: Callable[[Future[Job]], None]) -> None:
        self._aside.submit(make).add_done_callback(lambda made: self._inbox.put(lambda: then(made)))

    def _end(self) -> None:
        """Nothing runs any more: everybody who waits is told."""
        self._inbox.run_commands()
        self._host.fail_all(RequestFailure("EngineError", str(self._closed)))
        for future in self._questions.values():
            future.set_exception(EngineError(str(self._closed)))
        self._questions.clear()
        self._aside.shutdown(wait=False, cancel_futures=True)
        self._intake.close()
        self._scheduler.close()


class _CommandInbox:
    """The engine's inbox: commands of other threads, which leave messages for the scheduler."""

    def __init__(self) -> None:
        self.messages: list[ToScheduler] = []
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def put(self, command: Callable[[], None]) -> None:
        """Have the engine's thread run `command`. For any thread."""
        self._commands.put(command)

    def take(self, wait_s: float | None) -> Sequence[ToScheduler]:
        """Run the commands that came, and take the messages that they and the news of steps have left."""
        if wait_s != 0 and not self.messages:
            with suppress(queue.Empty):
                self._commands.get(timeout=wait_s)()
        self.run_commands()
        taken = tuple(self.messages)
        self.messages.clear()
        return taken

    def run_commands(self) -> None:
        """Run the commands that came."""
        while not self._commands.empty():
            self._commands.get()()

    def wake(self) -> None:
        """End the waiting of `take`."""
        self._commands.put(_nothing)


class EngineSession:
    """One program's tree on an engine. For any thread; events come from the engine's."""

    def __init__(self, engine: Engine, events: EventSink) -> None:
        self._engine = engine
        self._events = events
        self._node_ids = NodeIds()
        self._emitting = threading.RLock()  # held while an event is delivered, so that close() can wait for it
        self._closed = False
        self._program: HostedProgram | None = None

    def begin(self, host: ProgramHost, options: SessionOptions) -> None:
        """Make the tree; for the engine's thread."""
        self._program = host.open(self._emit, options)

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes, parents before children and sources before references. Returns without waiting for the engine.

        Raises:
            RequestError: an id is taken or negative, or a parent or source is unknown; none of `nodes` was added.
            EngineError: the engine was shut down, or it failed.
        """
        if self._closed:
            raise EngineError("this session is closed")
        self._node_ids.add(nodes)
        taken = tuple(nodes)  # the caller may go on to change what it gave
        self._engine._send(lambda: self._grow(taken))

    def abort(self) -> None:
        """End what still runs: every node that is not done ends in a `Failed` event. The session stays open.

        Nothing happens where it is closed, or the engine has ended.
        """
        with suppress(EngineError):  # all that was open has failed
            self._engine._send(lambda: self._tree.abort(ABORTED))

    def close(self) -> None:
        """Abort what still runs and forget the tree. No event comes after it returns. Closing twice is allowed."""
        with self._emitting:
            if self._closed:
                return
            self._closed = True
            self._events = nobody
        with suppress(EngineError):  # a stopped engine has nothing left to abort
            self._engine._send(self._forget)

    @property
    def _tree(self) -> HostedProgram:
        assert self._program is not None, "commands run in the order they were sent"
        return self._program

    def _grow(self, nodes: Sequence[Node]) -> None:
        if not self._closed:  # closed by another thread since `extend` looked: nobody would abort what began here
            self._tree.tree.extend(nodes)

    def _forget(self) -> None:
        self._tree.close()

    def _emit(self, event: Event) -> None:
        with self._emitting:
            if not self._closed:
                try:
                    self._events(event)
                except BaseException:
                    self._closed = True
                    raise


def _nothing() -> None:
    """A command that only wakes the engine."""
