"""The engine in process: one thread that runs the scheduler, and the sessions that programs open on it."""

from __future__ import annotations

import itertools
import logging
import queue
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar

from .clock import Clock, MonotonicClock
from .errors import EngineError, RequestError
from .jobs import compiled_stops
from .messages import CacheTree, SessionOptions
from .program import Event, Generate, ModelInfo, Node, Reference
from .request import Request
from .request_tree import RequestTree
from .scheduler import Scheduler, SchedulerStats
from .tokenizer import Tokenizer

logger = logging.getLogger("palmette.engine")

EventSink = Callable[[Event], None]
Answer = TypeVar("Answer")


class Engine:
    """Runs programs in this process. A language backend and a context manager.

    All state of the scheduler and of the request trees belongs to the engine's thread; other threads send it commands.
    `palmette.runtime.launch` builds one.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        model_info: ModelInfo,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._model_info = model_info
        self._clock = clock or MonotonicClock()
        self._seeds = random.Random(seed)
        self._session_ids = itertools.count()
        self._sessions: set[EngineSession] = set()
        self._owners: dict[str, EngineSession] = {}
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._gate = threading.Lock()  # held to send a command, and to close the queue for good
        self._closed: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="palmette-engine", daemon=True)
        scheduler.on_grammar_ready(lambda: self._commands.put(_nothing))
        self._thread.start()

    @property
    def model_info(self) -> ModelInfo:
        return self._model_info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def open(self, events: EventSink, options: SessionOptions = SessionOptions()) -> EngineSession:
        """Open an empty request tree whose events go to `events`, called from the engine's thread.

        Raises:
            EngineError: the engine was shut down, or it failed.
        """
        session = EngineSession(self, f"p{next(self._session_ids)}", events)
        self._send(lambda: self._sessions.add(session))
        return session

    def flush_cache(self) -> int:
        """Drop every prefix that no running request uses; returns the number of tokens dropped."""
        return self._ask(self._scheduler.flush_cache)

    def stats(self) -> SchedulerStats:
        """Counts of the scheduler at this moment: queues, running batch, pages, cache."""
        return self._ask(self._scheduler.stats)

    def cache_tree(self, limit: int) -> CacheTree:
        """Up to `limit` nodes of the radix cache, the most used first."""
        return CacheTree(())

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
            self._commands.put(command)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """The engine thread's answer to `question`. An event sink, which that thread calls, is answered at once."""
        if threading.current_thread() is self._thread:
            return question()
        answer: Future[Answer] = Future()

        def command() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        self._send(command)
        return answer.result()

    def _close(self, reason: EngineError) -> None:
        """Take no more commands; the first reason stays."""
        with self._gate:
            if self._closed is None:
                self._closed = reason
                self._commands.put(_nothing)

    # -- the engine's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._closed is None:
                self._take_commands()
                for update in self._scheduler.step():
                    self._owners[update.request.id].tree.deliver(update.request, update.text, update.finished)
                    if update.finished:
                        del self._owners[update.request.id]
        except BaseException as error:  # a thread that ends without telling would leave every program waiting
            logger.exception("the engine failed")
            reason = EngineError(f"the engine failed: {error}")
            reason.__cause__ = error
            self._close(reason)
        self._end_sessions()

    def _take_commands(self) -> None:
        """Carry out what other threads asked for; wait for a command where there is nothing to compute."""
        if not self._scheduler.can_step:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _end_sessions(self) -> None:
        while not self._commands.empty():
            self._commands.get()()
        for session in list(self._sessions):
            session.tree.fail_all("EngineError", str(self._closed))
        self._scheduler.close()

    def _submit(self, session: EngineSession, request: Request) -> None:
        self._scheduler.add(request)
        self._owners[request.id] = session

    def _draw_seed(self) -> int:
        return self._seeds.getrandbits(63)


class EngineSession:
    """One program's tree on an engine."""

    def __init__(self, engine: Engine, session_id: str, events: EventSink) -> None:
        self._engine = engine
        self._events = events
        self._node_ids: set[int] = set()
        self._emitting = threading.RLock()  # held while an event is delivered, so that close() can wait for it
        self._closed = False
        self.tree = RequestTree(
            session_id,
            engine.tokenizer,
            engine._clock,
            submit=lambda request: engine._submit(self, request),
            abort=engine._scheduler.abort,
            emit=self._emit,
            draw_seed=engine._draw_seed,
        )

    def extend(self, nodes: Sequence[Node]) -> None:
        """Add nodes, parents before children and sources before references. Returns without waiting for the engine.

        Raises:
            RequestError: an id is taken or negative, or a parent or source is unknown; none of `nodes` was added.
            EngineError: the engine was shut down, or it failed.
        """
        if self._closed:
            raise EngineError("this session is closed")
        known = self._node_ids
        added: set[int] = set()
        for node in nodes:
            if node.id < 0 or node.id in known or node.id in added:
                raise RequestError(f"node id {node.id} is negative or taken")
            if node.parent is not None and node.parent not in known and node.parent not in added:
                raise RequestError(f"node {node.id} continues node {node.parent}, which does not exist")
            if isinstance(node, Reference) and node.source not in known and node.source not in added:
                raise RequestError(f"node {node.id} refers to node {node.source}, which does not exist before it")
            added.add(node.id)
        taken = tuple(nodes)  # the caller may go on to change what it gave
        for node in taken:
            if isinstance(node, Generate) and node.params.stop_regex:
                compiled_stops(node.params.stop_regex)
        self._engine._send(lambda: self._grow(taken))
        self._node_ids |= added

    def abort(self) -> None:
        """End what still runs: every node that is not done ends in a `Failed` event. The session stays open."""
        self._engine._send(lambda: self.tree.fail_all("RequestAbortedError", "the program was aborted"))

    def close(self) -> None:
        """Abort what still runs and forget the tree. No event comes after it returns. Closing twice is allowed."""
        with self._emitting:
            if self._closed:
                return
            self._closed = True
        try:
            self._engine._send(self._forget)
        except EngineError:
            return  # a stopped engine has nothing left to abort

    def _grow(self, nodes: Sequence[Node]) -> None:
        if not self._closed:  # closed by another thread since `extend` looked: nobody would abort what began here
            self.tree.extend(nodes)

    def _forget(self) -> None:
        self.tree.abort()
        self._engine._sessions.discard(self)

    def _emit(self, event: Event) -> None:
        with self._emitting:
            if self._closed:
                return
            try:
                self._events(event)
            except BaseException:  # a broken client, even one that calls sys.exit(), must not stop the others
                logger.exception("a program's event sink failed; its session is closed")
                self.close()


def _nothing() -> None:
    """A command that only wakes the engine."""
