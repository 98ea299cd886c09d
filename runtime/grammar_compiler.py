"""Compiling grammars for an engine: Python in worker processes, the rest here without holding up the scheduler."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palmette.constrained.compiled import CompiledGrammar
from palmette.constrained.compiler import compile_program, make_program, warm_up
from palmette.constrained.errors import GrammarError, UnsatisfiableGrammarError
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import DEFAULT_LIMITS, CompileLimits, Deadline
from palmette.constrained.vocabulary import Vocabulary

from .grammar_process import ProcessPool
from .grammar_store import GrammarStore
from .stored_programs import PackedProgram, UnreadableProgramError, pack_program, unpack_program

logger = logging.getLogger("palmette.grammars")

_TURN_S = 0.001
_PAUSE_S = 0.0001
_CLOSE_S = 5.0
_NEAR_ENDING_BYTES = 1 << 14  # a request whose ending is further away learns its length, and takes no walk


class GrammarCompiler:
    """Compiles grammars for one vocabulary, as many at once as threads call it.

    The work in pure Python that a hard grammar takes seconds for is done in worker processes, one a call in progress;
    they are kept for later calls. What is left for the calling thread are a few arrays, and loops that release the GIL.
    Where processes cannot be started, all of it is done here, giving way to the scheduler's thread every millisecond.

    Args:
        vocabulary: of the model.
        limits: of each grammar.
        store: keeps programs on disk; None keeps none.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, limits: CompileLimits = DEFAULT_LIMITS, store: GrammarStore | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._store = store
        self._processes = ProcessPool()
        self._jobs: dict[_Job, Grammar] = {}
        self._changed = threading.Condition()  # held to change `_jobs`
        self._closed = False

    def warm_up(self) -> None:
        """Do what the first grammar would wait for: a worker process, the compiled loops, the sets of the vocabulary.

        It takes a second, on a machine that never did it half a minute.
        """
        self._processes.warm_up()
        warm_up()
        _ = self._vocabulary.slices  # made when first asked for

    def __call__(self, grammar: Grammar) -> CompiledGrammar:
        """Compile `grammar`. From any thread.

        Raises:
            GrammarError: what `compile_grammar` raises; or it was abandoned, or its worker died.
        """
        warm_up()
        job = _Job(self._limits)
        with self._changed:
            if self._closed:
                raise GrammarError("the grammar was not compiled: the engine is shutting down")
            self._jobs[job] = grammar
        try:
            return self._stored(grammar) or self._made(grammar, job)
        finally:
            with self._changed:
                del self._jobs[job]
                self._changed.notify_all()

    def abandon(self, grammar: Grammar) -> None:
        """Stop compiling `grammar` where that goes on now: nobody waits for it any more."""
        with self._changed:
            for job in [job for job, compiling in self._jobs.items() if compiling == grammar]:
                job.abandon()

    def close(self) -> None:
        """Stop everything, and end the worker processes."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.abandon()
            self._changed.wait_for(lambda: not self._jobs, timeout=_CLOSE_S)
        self._processes.close()

    def _stored(self, grammar: Grammar) -> CompiledGrammar | None:
        data = self._store.get(grammar) if self._store is not None else None
        if data is None:
            return None
        try:
            return self._usable(grammar, PackedProgram(data, is_plain=True))
        except UnreadableProgramError:
            return None  # it is written anew

    def _made(self, grammar: Grammar, job: _Job) -> CompiledGrammar:
        for simple in (False, True):
            packed = self._program(grammar, job, simple)
            compiled = self._usable(grammar, packed)
            job.check()
            if compiled is not None:
                if self._store is not None and packed.is_plain:
                    self._store.put(grammar, packed.data)
                return compiled
        raise UnsatisfiableGrammarError("nothing matches this grammar")

    def _program(self, grammar: Grammar, job: _Job, simple: bool) -> PackedProgram:
        alphabet = self._vocabulary.alphabet
        try:
            process = self._processes.take()
        except OSError as error:
            logger.warning("grammars compile in the engine's own process, since none can be started: %s", error)
            return pack_program(make_program(grammar, alphabet, self._limits, job, simple=simple))
        try:
            with job.using(process.kill):
                return process.make_program(grammar, alphabet, self._limits, simple=simple)
        finally:
            self._processes.give_back(process)

    def _usable(self, grammar: Grammar, packed: PackedProgram) -> CompiledGrammar | None:
        """The compiled grammar, with answers to what every request asks first; None as of `compile_program`.

        Raises:
            UnreadableProgramError: it is damaged.
        """
        program = unpack_program(packed.data, is_private=not packed.is_plain)
        compiled = compile_program(grammar, program, self._vocabulary, self._limits)
        if compiled is not None:
            _take_first_steps(compiled)
        return compiled


def _take_first_steps(compiled: CompiledGrammar) -> None:
    """Ask a grammar what every request asks it first; it keeps the answers."""
    start = compiled.start
    if compiled.ending_bytes(start) <= _NEAR_ENDING_BYTES:
        compiled.shortest_ending(start)
    compiled.forced_bytes(start)
    compiled.mask(start)


class _Job(Deadline):
    """One compilation in progress: its deadline, which whoever checks it also gives way to other threads."""

    def __init__(self, limits: CompileLimits) -> None:
        super().__init__(limits)
        self._lock = threading.Lock()
        self._abandoned = False
        self._stop: Callable[[], None] | None = None
        self._turn_end_s = 0.0

    def check(self) -> None:
        """Raise `GrammarLimitError` once the time is up, and `GrammarError` once the job was abandoned."""
        if self._abandoned:
            raise GrammarError("nobody waits for this grammar any more")
        super().check()
        if time.monotonic() > self._turn_end_s:
            time.sleep(_PAUSE_S)  # lets go of the interpreter, which else another thread waits for up to 5 ms
            self._turn_end_s = time.monotonic() + _TURN_S

    @contextmanager
    def using(self, stop: Callable[[], None]) -> Iterator[None]:
        """Have `stop` called if the job is abandoned in this block.

        Raises:
            GrammarError: it was abandoned before.
        """
        with self._lock:
            self.check()
            self._stop = stop
        try:
            yield
        finally:
            with self._lock:
                self._stop = None

    def abandon(self) -> None:
        """End the job soon, by an error. From any thread."""
        with self._lock:
            self._abandoned = True
            if self._stop is not None:
                self._stop()
