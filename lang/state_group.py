"""The branches of a fork, to append to and to join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from .errors import ProgramError
from .expr import Expr
from .source_line import calling_line

if TYPE_CHECKING:
    from .state import ProgramState

JoinMode = Literal["gather", "concat"]


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

    def join(self, mode: JoinMode = "gather") -> None:
        """End the branches and bring what they hold to the state that was forked.

        Args:
            mode: "gather" makes each variable that the branches set a list of their values, in order, and waits for
                none of them; variables that the forked state set itself stay. "concat" waits for the branches and
                appends their texts, one after another.

        Raises:
            ProgramError: the branches are joined already, or a branch has left a message open ("concat").
            NodeFailedError: a generation of a branch failed ("concat").
            ValueError: there is no such mode.
        """
        line = calling_line()
        if mode not in ("gather", "concat"):
            raise ValueError(f'join() knows the modes "gather" and "concat", not {mode!r}')
        if self._joined:
            raise ProgramError("these branches are joined already", line=line)
        branches = [state._interpreter for state in self._states]
        if mode == "gather":
            self._parent._interpreter.gather(branches, line)
        else:
            self._parent._interpreter.concat(branches, self._start, line)
        self._joined = True
