"""A program that is run for every item of a batch, and the line that is written of each."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import palmette as pt

from .arguments import fault_in
from .errors import UsageError
from .items import Item
from .outcome import Outcome, json_object, json_text, outcome_of
from .program_file import place_and_reason


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What is run for every item.

    Attributes:
        function: the program.
        arguments: those that all items share; an item's own win.
        with_text: lines hold the program's text too.
    """

    function: pt.Function
    arguments: dict[str, Any]
    with_text: bool

    def fault_in(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with an item's arguments; None for nothing."""
        return fault_in(self.function, {**self.arguments, **arguments})

    def run(
        self, items: Iterator[Item], *, num_threads: int | Literal["auto"], timeout_s: float | None
    ) -> Generator[tuple[str, bool], None, None]:
        """Run items on the default backend and yield their lines in order, each with whether the item failed.

        A bounded number of items is taken ahead of the lines. Closing it cancels what runs.
        """
        taken: deque[Item] = deque()
        states = self.function.run_batch(
            self._arguments(items, taken), num_threads=num_threads, generator_style=True, timeout_s=timeout_s
        )
        for state in states:
            yield from self._faults(taken)
            yield self._line(taken.popleft(), outcome_of(state), state)
        yield from self._faults(taken)

    def _arguments(self, items: Iterator[Item], taken: deque[Item]) -> Iterator[dict[str, Any]]:
        """The arguments of the items that can be run; all items are kept in `taken`."""
        for item in items:
            taken.append(item)
            if item.fault is None and item.arguments is not None:
                yield {**self.arguments, **item.arguments}

    def _faults(self, taken: deque[Item]) -> Iterator[tuple[str, bool]]:
        """The lines of the items up to the first that was run."""
        while taken and taken[0].fault is not None:
            item = taken.popleft()
            yield self._line(item, Outcome({}, None, UsageError(str(item.fault))))

    def _line(self, item: Item, outcome: Outcome, state: pt.ProgramState | None = None) -> tuple[str, bool]:
        members = {
            "index": json_text(item.index),
            "args": json_text(item.arguments),
            "variables": json_object(outcome.values),
            "value": json_text(outcome.returned),
            "error": json_text(outcome.error and self._reason(outcome.error)),
        }
        if self.with_text:
            members["text"] = json_text(state and _text(state))
        line = ", ".join(f'"{name}": {value}' for name, value in members.items())
        return f"{{{line}}}", outcome.error is not None

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, UsageError):
            return str(error)
        if isinstance(error, pt.PalmetteError):
            return f"{type(error).__name__}: {error}"
        return place_and_reason(error, Path(inspect.getfile(inspect.unwrap(self.function))))


def _text(state: pt.ProgramState) -> str | None:
    """The program's text; None where a part of it failed."""
    try:
        return state.text()
    except pt.PalmetteError:
        return None
