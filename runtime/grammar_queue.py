"""Where constrained requests wait while their grammar compiles, off the scheduler's thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from palmette.constrained.errors import GrammarError, PalmetteError
from palmette.constrained.grammar import Grammar

from .request import Request

if TYPE_CHECKING:
    from palmette.constrained import CompiledGrammar

Compile = Callable[[Grammar], "CompiledGrammar"]
_Job = Future["CompiledGrammar"]

DEFAULT_CAPACITY = 128


@dataclass(frozen=True, slots=True)
class GrammarOutcome:
    """The end of a request's wait: its compiled grammar, or why there is none."""

    request: Request
    compiled: CompiledGrammar | PalmetteError


class GrammarQueue:
    """Compiles each distinct grammar once at a time, and keeps the compiled ones that were used last.

    All methods are for the scheduler's thread. Compiling happens in the executor; a grammar that fails, fails exactly
    the requests that wait for it, and is tried again when it is next asked for.

    Args:
        compile_grammar: raises a GrammarError for a grammar that cannot be used.
        executor: where to compile; None makes one with a single thread. It is shut down by `close` either way.
        capacity: how many compiled grammars are kept for later requests.
    """

    def __init__(
        self, compile_grammar: Compile, *, executor: Executor | None = None, capacity: int = DEFAULT_CAPACITY
    ) -> None:
        self._compile = compile_grammar
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="palmette-grammar")
        self._capacity = capacity
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()  # least recently used first
        self._jobs: dict[Grammar, _Job] = {}
        self._waiting: dict[Grammar, list[Request]] = {}
        self._ready: list[GrammarOutcome] = []
        self._on_ready: Callable[[], None] = _nothing
        self._done = threading.Event()  # set from the executor's threads: some job may have ended since the last poll

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._waiting.values())) + len(self._ready)

    @property
    def has_ready(self) -> bool:
        """Whether `poll` has something to give."""
        return bool(self._ready) or self._done.is_set()

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever a grammar is compiled or failed, from the thread that compiled it."""
        self._on_ready = callback

    def add(self, request: Request) -> None:
        """Have a request wait for its grammar."""
        grammar = request.grammar
        assert grammar is not None
        compiled = self._compiled.get(grammar)
        if compiled is not None:
            self._compiled.move_to_end(grammar)
            self._ready.append(GrammarOutcome(request, compiled))
            return
        self._waiting.setdefault(grammar, []).append(request)
        if grammar not in self._jobs:
            self._jobs[grammar] = job = self._executor.submit(self._compile, grammar)
            job.add_done_callback(self._job_done)

    def remove(self, request: Request) -> None:
        """Forget a request that was aborted while it waited. A job not begun yet that nobody waits for is cancelled."""
        self._ready = [outcome for outcome in self._ready if outcome.request is not request]
        grammar = request.grammar
        waiting = self._waiting.get(grammar) if grammar is not None else None
        if grammar is None or not waiting or request not in waiting:
            return
        waiting.remove(request)
        if not waiting:
            del self._waiting[grammar]
            if self._jobs[grammar].cancel():
                del self._jobs[grammar]

    def forget(self, grammar: Grammar) -> None:
        """Compile the grammar anew when it is next asked for: the one that is kept has met its limits."""
        self._compiled.pop(grammar, None)

    def poll(self) -> list[GrammarOutcome]:
        """The requests whose wait is over, each once."""
        if self._done.is_set():
            self._done.clear()
            for grammar in [grammar for grammar, job in self._jobs.items() if job.done()]:
                self._collect(grammar, self._jobs.pop(grammar))
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Compile no more. A job that is under way is not waited for; its result is dropped."""
        self._on_ready = _nothing
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _job_done(self, job: _Job) -> None:
        self._done.set()
        self._on_ready()

    def _collect(self, grammar: Grammar, job: _Job) -> None:
        outcome = _outcome(job)
        if not isinstance(outcome, PalmetteError):
            self._compiled[grammar] = outcome
            if len(self._compiled) > self._capacity:
                self._compiled.popitem(last=False)
        self._ready += [GrammarOutcome(request, outcome) for request in self._waiting.pop(grammar, [])]


def _outcome(job: _Job) -> CompiledGrammar | PalmetteError:
    if job.cancelled():
        return GrammarError("the grammar was not compiled: the engine is shutting down")
    error = job.exception()
    if error is None:
        return job.result()
    if isinstance(error, PalmetteError):
        return error
    wrapped = GrammarError(f"the grammar could not be compiled: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _nothing() -> None:
    """Nobody asked to be told."""
