"""Where constrained requests wait while their grammar compiles, off the scheduler's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeGuard

from palmette.constrained.errors import GrammarError, GrammarLimitError, PalmetteError
from palmette.constrained.grammar import Grammar

from .grammar_cache import GrammarCache
from .request import Request

if TYPE_CHECKING:
    from palmette.constrained import TokenGrammar

_Job = Future["TokenGrammar"]

DEFAULT_WORKERS = 4
"""Grammars that compile at once, so that a few hard ones do not hold up the easy ones."""


class Compiler(Protocol):
    """Compiles grammars, from several threads at once."""

    def __call__(self, grammar: Grammar, /) -> TokenGrammar:
        """Raises a GrammarError for a grammar that cannot be used."""


class StoppableCompiler(Compiler, Protocol):
    """A compiler whose work can be stopped."""

    def abandon(self, grammar: Grammar) -> None:
        """End what compiles `grammar` now, by an error: nobody waits for it any more."""

    def close(self) -> None:
        """End everything."""


@dataclass(frozen=True, slots=True)
class GrammarOutcome:
    """The end of a request's wait: its compiled grammar, or why there is none."""

    request: Request
    compiled: TokenGrammar | PalmetteError


class GrammarQueue:
    """Compiles each distinct grammar once at a time, and keeps the compiled ones that were used last.

    All methods are for the scheduler's thread. Compiling happens in the executor; a grammar that fails, fails exactly
    the requests that wait for it, and is tried again when it is next asked for. Where the last request that waits goes
    away, so does the job: one that is under way too if the compiler is a `StoppableCompiler`; else its result is kept.

    Args:
        compile_grammar: a `Compiler`.
        executor: where to compile; None makes one with `DEFAULT_WORKERS` threads. It is shut down by `close` either
            way.
        cache: of compiled grammars; None makes one of the usual size.
    """

    def __init__(
        self,
        compile_grammar: Compiler | StoppableCompiler,
        *,
        executor: Executor | None = None,
        cache: GrammarCache | None = None,
    ) -> None:
        self._compile = compile_grammar
        self._executor = executor or ThreadPoolExecutor(DEFAULT_WORKERS, thread_name_prefix="palmette-grammar")
        self._cache = GrammarCache() if cache is None else cache
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
        compiled = self._cache.get(grammar)
        if compiled is not None:
            self._ready.append(GrammarOutcome(request, compiled))
            return
        job = self._jobs.get(grammar)
        if job is None:
            job = self._jobs[grammar] = self._executor.submit(self._compile, grammar)
            job.add_done_callback(self._job_done)
        self._waiting.setdefault(grammar, []).append(request)

    def remove(self, request: Request) -> None:
        """Forget a request that was aborted while it waited, and the job that nobody else waits for."""
        self._ready = [outcome for outcome in self._ready if outcome.request is not request]
        grammar = request.grammar
        waiting = self._waiting.get(grammar) if grammar is not None else None
        if grammar is None or not waiting or request not in waiting:
            return
        waiting.remove(request)
        if not waiting:
            del self._waiting[grammar]
            self._stop(grammar)

    def forget(self, grammar: Grammar) -> None:
        """Compile the grammar anew when it is next asked for: the one that is kept has met its limits."""
        self._cache.forget(grammar)

    def poll(self) -> list[GrammarOutcome]:
        """The requests whose wait is over, each once."""
        if self._done.is_set():
            self._done.clear()
            for grammar in [grammar for grammar, job in self._jobs.items() if job.done()]:
                self._collect(grammar, self._jobs.pop(grammar))
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Compile no more. A job that is under way is stopped, or not waited for; its result is dropped."""
        self._on_ready = _nothing
        self._executor.shutdown(wait=False, cancel_futures=True)
        if is_stoppable(self._compile):
            self._compile.close()

    def _stop(self, grammar: Grammar) -> None:
        if self._jobs[grammar].cancel():
            del self._jobs[grammar]
        elif is_stoppable(self._compile) and not self._jobs[grammar].done():
            del self._jobs[grammar]
            self._compile.abandon(grammar)

    def _job_done(self, job: _Job) -> None:
        self._done.set()
        self._on_ready()

    def _collect(self, grammar: Grammar, job: _Job) -> None:
        outcome = _outcome(job)
        if not isinstance(outcome, PalmetteError):
            self._cache.put(grammar, outcome)
        self._ready += [GrammarOutcome(request, outcome) for request in self._waiting.pop(grammar, [])]


def _outcome(job: _Job) -> TokenGrammar | PalmetteError:
    if job.cancelled():
        return GrammarError("the grammar was not compiled: the engine is shutting down")
    error = job.exception()
    if error is None:
        return job.result()
    if isinstance(error, PalmetteError):
        return error
    wrapped = _as_grammar_error(error)
    wrapped.__cause__ = error
    return wrapped


def _as_grammar_error(error: BaseException) -> GrammarError:
    if isinstance(error, RecursionError):
        return GrammarLimitError("the grammar is nested too deeply to be compiled; simplify it")
    if isinstance(error, MemoryError):
        return GrammarLimitError("the grammar takes more memory to compile than there is; simplify it")
    return GrammarError(f"the grammar could not be compiled: {type(error).__name__}: {error}")


def is_stoppable(compiler: Compiler | StoppableCompiler) -> TypeGuard[StoppableCompiler]:
    """Whether a compiler's work can be stopped."""
    return hasattr(compiler, "abandon")


def _nothing() -> None:
    """Nobody asked to be told."""
