"""One run of a program's function, from its start to the end of its generations."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from .execution import Execution
from .state import ProgramState
from .text_cursor import wait_async


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
        with _ending(execution):
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
    def _execution(self) -> Execution:
        return self.state._execution

    async def _run_in_thread(self) -> ProgramState:
        try:
            return await asyncio.to_thread(self.run)
        except asyncio.CancelledError:
            self.state.cancel()  # the thread ends at its next step
            raise


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
