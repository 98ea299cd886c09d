"""Follows a program's function without a backend: its nodes are kept, and the first value that is read ends it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn

from palmette.runtime.program import ModelInfo, Node

from .backend import EventSink, Session
from .errors import ProgramError
from .execution import Execution
from .interpreter import Interpreter
from .source_line import SourceLine, calling_line
from .state import ProgramState

_Flow = tuple[int, "asyncio.Task[Any] | None"]
"""What runs one line after another: a thread, or a task of asyncio on it."""


class ValueUnknown(BaseException):
    """Ends a function that is compiled where it needs a value. ``except Exception`` lets it pass; ``finally`` runs."""


@dataclass(frozen=True, slots=True)
class _Silent:
    """Stands where a backend does; nothing is ever sent."""

    model_info: ModelInfo

    def open(self, events: EventSink, *, program: str | None = None) -> Session:
        raise AssertionError("a program that is compiled sends nothing")


class DryExecution(Execution):
    """A program that is compiled. Its nodes are those that a run would send up to the first value that it reads.

    The functions of `forks.map` run one after another, each up to the first value that it reads itself. Where a value
    is needed nothing more is appended by who needs it, also not by ``finally`` blocks on the way out.

    Attributes:
        stopped_at: the line that needed a value first, None where none did.
    """

    def __init__(self, info: ModelInfo, *, name: str, defaults: Mapping[str, Any]) -> None:
        super().__init__(_Silent(info), name=name, defaults=defaults, streaming=False)
        self.stopped_at: SourceLine | None = None
        self._stopped: set[_Flow] = set()
        self._root: _Flow = self._flow()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What a run would send."""
        return tuple(self._pending)

    def follow(self, program: Callable[..., Any], call: inspect.BoundArguments) -> None:
        """Call the function, up to its end or the first value that it reads.

        Raises:
            Exception: whatever the function raised before that.
        """
        state = ProgramState(self, Interpreter(self))
        outside = _current.set(self)
        try:
            ending = program(state, *call.args, **call.kwargs)
            if inspect.iscoroutine(ending):
                _run_to_end(self._awaited(ending))
        except BaseException as error:
            if not self._follows_from_stop(error):
                error.add_note(f"raised while {self.name} was compiled; nothing was sent")
                raise
        finally:
            _current.reset(outside)
            with self.changed:
                self.ended = self._closed = True
        if self.failure is not None:
            raise self.failure

    async def _awaited(self, ending: Coroutine[Any, Any, Any]) -> None:
        self._loop_thread = threading.get_ident()
        self._root = self._flow()
        await ending

    # -- what a run does otherwise ----------------------------------------------------------------------------------

    def about_to_wait(self) -> NoReturn:
        """A value is needed that will never be there.

        Raises:
            ValueUnknown: always, but for a function that has ended.
            ProgramError: it has ended, and somebody has kept its state.
        """
        line = calling_line()
        if self.ended:
            raise ProgramError(f"{self.name} was compiled, not run: it has no values", line=line)
        with self.changed:
            self.stopped_at = self.stopped_at or line
            self._stopped.add(self._flow())
        raise self._signal()

    def settled(self, node_ids: Iterable[int]) -> Callable[[], bool | None]:
        """Always: who only waits, and reads no value, goes on."""
        return lambda: True

    def add(self, make: Callable[[int], Node], *, branch: int, line: SourceLine, name: str | None) -> Node:
        if self._stopped and self._has_stopped():
            raise self._signal()
        return super().add(make, branch=branch, line=line, name=name)

    def branch_threads(self, count: int) -> Executor:
        """Runs what it is given at once, in this thread, so that the nodes always come in the same order."""
        if self._stopped and self._has_stopped():
            raise self._signal()
        return _OneAfterAnother(self)

    # -- where it has stopped ---------------------------------------------------------------------------------------

    def _flow(self) -> _Flow:
        thread = threading.get_ident()
        return thread, asyncio.current_task() if thread == self._loop_thread else None

    def _has_stopped(self) -> bool:
        """Whether the caller needed a value before, and is cleaning up or has caught what should have ended it.

        The program's own flow has also stopped with any other that it began.
        """
        flow = self._flow()
        return flow in self._stopped or flow == self._root or _holds_signal(sys.exception())

    def _signal(self) -> BaseException:
        """What ends the calling flow. In a thread of the program's own SystemExit does, which nobody reports."""
        signal = ValueUnknown(f"{self.name} is compiled and needs a value here, which only a run has")
        if threading.get_ident() == self._root[0]:
            return signal
        ending = SystemExit()
        ending.__cause__ = signal
        return ending

    def _follows_from_stop(self, error: BaseException) -> bool:
        """Whether an exception is there only since a value was needed, here or in a thread of the program's own."""
        if _holds_signal(error):
            return True
        return isinstance(error, Exception) and any(thread != self._root[0] for thread, _ in self._stopped)

    @contextlib.contextmanager
    def own_flow(self) -> Iterator[None]:
        """The block goes on whatever has stopped before it, and stops nobody until it ends."""
        before, self._stopped = self._stopped, set()
        try:
            yield
        finally:
            self._stopped |= before


_current: contextvars.ContextVar[DryExecution | None] = contextvars.ContextVar("palmette_compiled", default=None)


def stop_if_compiled() -> None:
    """Called where a program is run. Inside of one that is compiled nothing runs: it needs the values of that run."""
    execution = _current.get()
    if execution is not None and not execution.ended:
        execution.about_to_wait()


class _OneAfterAnother(Executor):
    """Calls each function when it is submitted."""

    def __init__(self, execution: DryExecution) -> None:
        self._execution = execution

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._execution.own_flow():
            try:
                future.set_result(fn(*args, **kwargs))
            except (Exception, ValueUnknown) as error:
                future.set_exception(error)
        return future


def _holds_signal(error: BaseException | None) -> bool:
    """Whether an exception is the signal, a group that holds it, or was raised because of it, or while handling it."""
    waiting, seen = [error], set()
    while waiting:
        error = waiting.pop()
        if isinstance(error, ValueUnknown):
            return True
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        waiting += [error.__context__, error.__cause__]
        waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return False


def _run_to_end(ending: Coroutine[Any, Any, None]) -> None:
    """Run on an event loop of its own: in this thread, or where that runs a loop already, in another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _run_on_loop(ending)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="palmette-compile") as thread:
        thread.submit(contextvars.copy_context().run, _run_on_loop, ending).result()


def _run_on_loop(ending: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(_report_others)
        runner.run(ending)


def _report_others(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A task that stopped, and that nobody awaits any more, is nothing to report."""
    if not isinstance(context.get("exception"), ValueUnknown):
        loop.default_exception_handler(context)
