"""One run of a program's function, from its start to the end of its generations."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .execution import Execution
from .state import ProgramState
from .text_cursor import wait_async

MAX_AWAITED = 128
"""Most programs that are not async and run at once under `Function.run_async`; a further one waits for its turn."""


class Run:
    """A call of a program's function that has not begun. Exactly one of its methods is called, once."""

    def __init__(self, program: Callable[..., Any], call: inspect.BoundArguments, state: ProgramState) -> None:
        self.state = state
        self.is_async = inspect.iscoroutinefunction(program)
        self._program = program
        self._call = call

    def run(self) -> ProgramState:
        """Run in this thread, an async program on an event loop of its own.

        Raises:
            Exception: whatever the function raised, or what stopped the run.
        """
        if self.is_async:
            return asyncio.run(self.run_on_loop())
        execution = self._execution
        with _ending(execution):
            execution.start()
            execution.returned(self._program(self.state, *self._call.args, **self._call.kwargs))
            execution.wait(execution.is_complete)
        return self.state

    async def run_on_loop(self) -> ProgramState:
        """Run on this event loop, a program that is not async in a thread.

        Raises: as `run`.
        """
        if not self.is_async:
            return await self._run_in_thread()
        execution = self._execution
        with _ending(execution), _interrupting(execution):
            execution.start(on_loop=True)
            execution.returned(await self._program(self.state, *self._call.args, **self._call.kwargs))
            await wait_async(execution, execution.is_complete)
        return self.state

    def run_kept(self) -> ProgramState:
        """As `run`; the state keeps what the function raises, SystemExit too."""
        with contextlib.suppress(BaseException):
            self.run()
        return self.state

    async def run_kept_on_loop(self) -> ProgramState:
        """As `run_on_loop`; the state keeps what the function raises, and that its task was cancelled."""
        with contextlib.suppress(BaseException):
            await self.run_on_loop()
        return self.state

    @property
    def place(self) -> int:
        """The place of a batch's item."""
        if self.state.place is None:
            raise AssertionError("this run is of no batch")
        return self.state.place

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The function's own arguments by name, as they were given."""
        return self._call.arguments

    @property
    def _execution(self) -> Execution:
        return self.state._execution

    async def _run_in_thread(self) -> ProgramState:
        try:
            in_context = functools.partial(contextvars.copy_context().run, self.run)
            return await asyncio.get_running_loop().run_in_executor(_threads(), in_context)
        except asyncio.CancelledError:
            self.state.cancel()  # the thread ends at its next step
            raise


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads for programs that are awaited and not async; asyncio's own are few, and are also for other things."""
    return ThreadPoolExecutor(MAX_AWAITED, thread_name_prefix="palmette-awaited")


@contextlib.contextmanager
def _interrupting(execution: Execution) -> Iterator[None]:
    """Cancel this task, which runs the block, when the execution is stopped: what it awaits may be no part of ours.

    What stopped the execution is then raised in the place of the cancellation.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted and not execution.ended:
            interrupted = task.cancel()

    def look() -> None:
        if execution.failure is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to cancel
                loop.call_soon_threadsafe(interrupt)

    execution.listen(look)
    try:
        yield
    except asyncio.CancelledError:
        if interrupted and task.uncancel() == 0 and execution.failure is not None:
            raise execution.failure from None
        raise
    finally:
        execution.unlisten(look)


@contextlib.contextmanager
def _ending(execution: Execution) -> Iterator[None]:
    """End the execution well where the block does, else with what the block raised, or with what stopped the run."""
    try:
        yield
    except BaseException as error:
        execution.fail(error)
        stopped = execution.failure
        if stopped is not None and stopped is not error and isinstance(error, Exception):
            raise type(stopped)(str(stopped)) from error  # a new one, since it may itself be the cause of `error`
        raise
    if execution.failure is not None:
        raise execution.failure
    execution.complete()
