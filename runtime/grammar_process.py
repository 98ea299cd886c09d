"""The engine's side of a worker process that makes programs of grammars."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

import palmette
from palmette.constrained.errors import (
    GrammarError,
    GrammarLimitError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
)
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import CompileLimits

from .grammar_worker import ProgramAnswer, ProgramJob, read_message, write_message
from .stored_programs import PackedProgram, bytes_text

_COMMAND = (sys.executable, "-m", "palmette.runtime.grammar_worker")
_GRACE_S = 2.0
_ERRORS = {
    kind.__name__: kind
    for kind in (GrammarError, GrammarLimitError, UnsatisfiableGrammarError, UnsupportedGrammarError)
}


class GrammarProcess:
    """One worker process: a grammar at a time.

    `make_program` is for one thread at a time; `kill` may come from any.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self) -> None:
        package = str(Path(palmette.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt of the user is the engine's to answer
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def make_program(
        self, grammar: Grammar, alphabet: int, limits: CompileLimits, *, simple: bool = False
    ) -> PackedProgram:
        """The packed program of `grammar`, made within the time limit. The process is killed where that has passed.

        Raises:
            GrammarLimitError: it took too long.
            GrammarError: what making it raises; or the process was killed, or died.
        """
        too_late = threading.Timer(limits.seconds + _GRACE_S, self.kill)
        too_late.daemon = True
        too_late.start()
        job = ProgramJob.of(grammar, alphabet, limits, simple=simple)
        try:
            answer = self._ask(job)
        except (OSError, EOFError, ValueError):
            raise self._ended(too_late.finished.is_set(), limits) from None
        finally:
            too_late.cancel()
        if answer.error:
            raise _as_error(answer)
        return PackedProgram(answer.data, answer.is_plain)

    def kill(self) -> None:
        """End the process now. Whoever waits for it learns it by an error."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and wait until it is gone. Only while no `make_program` runs."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):  # what was not written yet cannot be written any more
                stream.close()

    def _ask(self, job: ProgramJob) -> ProgramAnswer:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        write_message(stdin, job)
        return msgspec.msgpack.decode(read_message(stdout), type=ProgramAnswer)

    def _ended(self, is_late: bool, limits: CompileLimits) -> GrammarError:
        self._process.kill()  # it may be alive and have answered nonsense
        code = self._process.wait()
        if is_late:
            return GrammarLimitError(
                f"compiling took longer than {limits.seconds} s (CompileLimits.seconds); simplify the grammar"
            )
        return GrammarError(f"the process that compiled this grammar ended before it was done, with code {code}")


def _as_error(answer: ProgramAnswer) -> GrammarError:
    """The error of the worker; its message holds the pointer already."""
    error = _ERRORS.get(answer.error, GrammarError)(bytes_text(answer.message))
    error.pointer = bytes_text(answer.pointer)
    return error


class ProcessPool:
    """Worker processes that wait for work; as many come to be as are in use at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[GrammarProcess] = []
        self._closed = False

    def warm_up(self) -> None:
        """Start a process ahead of its first use. Where that cannot be, `take` will say so."""
        with suppress(OSError):
            self._keep(GrammarProcess())

    def take(self) -> GrammarProcess:
        """A process that nobody else uses.

        Raises:
            OSError: none can be started.
        """
        while (process := self._pop()) is not None:
            if process.is_alive:
                return process
            process.close()  # it died while it waited
        return GrammarProcess()

    def give_back(self, process: GrammarProcess) -> None:
        """Keep a process for later use. For one that has ended a new one is started, so that it will be warm."""
        if process.is_alive:
            self._keep(process)
            return
        process.close()
        if not self._closed:
            self.warm_up()

    def close(self) -> None:
        """End the processes that wait, and each other one when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def _pop(self) -> GrammarProcess | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, process: GrammarProcess) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(process)
                return
        process.close()
