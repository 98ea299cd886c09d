"""The branches of a fork, to append to and to join."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from .errors import ProgramError
from .expr import Expr
from .source_line import calling_line

if TYPE_CHECKING:
    from .state import ProgramState

JoinMode = Literal["gather", "concat", "gather_variable", "concate_and_append"]
_MODES: dict[str, Literal["gather", "concat"]] = {
    "gather": "gather",
    "concat": "concat",
    "gather_variable": "gather",
    "concate_and_append": "concat",
}
"""The modes of `ProgramStateGroup.join`; the last two are SGLang's names for them."""

MAX_THREADS = 32
"""Most branches whose code `ProgramStateGroup.map` runs at once."""

R = TypeVar("R")
P = ParamSpec("P")


class ProgramStateGroup(Sequence["ProgramState"]):
    """The branches of one fork."""

    def __init__(self, parent: ProgramState, states: Sequence[ProgramState]) -> None:
        self._parent = parent
        self._states = tuple(states)
        self._start = len(states[0]._interpreter.path)
        self._joined = False

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ProgramState, ...]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | tuple[ProgramState, ...]:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Lets ``forks[i] += ...`` work; a branch cannot be replaced."""
        if state is not self._states[index]:
            raise TypeError("a branch of a fork cannot be replaced; append to it with forks[i] += ...")

    def __iadd__(self, expr: str | Expr | Sequence[str | Expr] | Callable[[int], str | Expr]) -> Self:
        """Append to every branch: the same, one of a list for each, or what a function of its place returns."""
        for state, item in zip(self._states, self._one_each(expr), strict=True):
            state += item
        return self

    def _one_each(self, expr: object) -> list[Any]:
        if isinstance(expr, str | Expr):
            return [expr] * len(self)
        if callable(expr):
            return [expr(place) for place in range(len(self))]
        if not isinstance(expr, Sequence) or len(expr) != len(self):
            raise TypeError(
                f"`forks +=` takes a string or an expression, a list of {len(self)} of them (one a branch), "
                f"or a function of the branch's place, not {expr!r}"
            )
        return list(expr)

    @overload
    def map(  # type: ignore[overload-overlap]  # an async function is the first, though it fits the second as well
        self, function: Callable[Concatenate[ProgramState, P], Awaitable[R]], /, *iterables: Iterable[Any]
    ) -> Awaitable[list[R]]: ...
    @overload
    def map(self, function: Callable[Concatenate[ProgramState, P], R], /, *iterables: Iterable[Any]) -> list[R]: ...
    def map(self, function: Callable[..., Any], /, *iterables: Iterable[Any]) -> Any:
        """Run ``function(branch, *items)`` for every branch side by side and return what they return, in order.

        Branches do not wait for each other's values, as they would in a loop that reads them. If the code of one
        raises, the others go on to their ends; then the first exception, by branch, is raised.

        Args:
            function: gets a branch, and one item of each of `iterables`. Plain functions run in threads, at most 32 at
                once; of an ``async def`` function, `map` returns what to await.
            iterables: one item a branch each.

        Raises:
            ValueError: an iterable has more or fewer items than there are branches.
            ProgramError: the program is async and `function` is not.
            Exception: what `function` raised, with a note that says in which branch.
        """
        calls = list(zip(self._states, *iterables, strict=True))
        if inspect.iscoroutinefunction(function):
            return self._map_async(function, calls)
        self._parent._execution.check_may_wait("give forks.map() an async def function and await it")
        with self._parent._execution.branch_threads(min(MAX_THREADS, len(calls))) as threads:
            futures = [threads.submit(self._run_branch, function, call) for call in calls]
        return [_result(place, future.exception(), future.result) for place, future in enumerate(futures)]

    def _run_branch(self, function: Callable[..., R], call: tuple[Any, ...]) -> R:
        with self._parent._execution.as_program():
            return function(*call)

    async def _map_async(self, function: Callable[..., Awaitable[R]], calls: list[tuple[Any, ...]]) -> list[R]:
        ends = await asyncio.gather(*(function(*call) for call in calls), return_exceptions=True)
        return [
            _result(place, end if isinstance(end, BaseException) else None, lambda end=end: end)  # type: ignore[misc]  # mypy cannot infer a lambda's default
            for place, end in enumerate(ends)
        ]

    def join(self, mode: JoinMode = "gather") -> None:
        """End the branches and bring what they hold to the state that was forked.

        Args:
            mode: "gather" makes each variable that the branches set a list of their values, in order, and waits for
                none of them; variables that the forked state set itself stay. "concat" waits for the branches and
                appends their texts, one after another. SGLang's names for these are taken too.

        Raises:
            ProgramError: the branches are joined already, or a branch has left a message open ("concat").
            NodeFailedError: a generation of a branch failed ("concat").
            ValueError: there is no such mode.
        """
        line = calling_line()
        if mode not in _MODES:
            raise ValueError(f'join() knows the modes "gather" and "concat", not {mode!r}')
        if self._joined:
            raise ProgramError("these branches are joined already", line=line)
        branches = [state._interpreter for state in self._states]
        if _MODES[mode] == "gather":
            self._parent._interpreter.gather(branches, line)
        else:
            self._parent._interpreter.concat(branches, self._start, line)
        self._joined = True


def _result(place: int, failure: BaseException | None, value: Callable[[], R]) -> R:
    """The value of a branch's code, or the exception that ended it, which names the branch."""
    if failure is None:
        return value()
    failure.add_note(f"in branch {place} of forks.map()")
    raise failure
