"""A program that is run for every item of a batch, and the line that is written of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import palmette as pt
from palmette.lang.batch_lines import result_line
from palmette.lang.outcome import Outcome, outcome_of, reason_of

from .arguments import fault_in
from .errors import UsageError
from .items import Item
from .program_file import file_of


@dataclass(frozen=True, slots=True)
class Ended:
    """An item that has ended.

    Attributes:
        place: the item's.
        line: its line of JSON.
        failed: it has an error.
        state: what the run left; None where the item could not be run.
    """

    place: int
    line: str
    failed: bool
    state: pt.ProgramState | None


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
        self,
        items: Iterator[Item],
        count: int | None,
        *,
        num_threads: int | Literal["auto"],
        timeout_s: float | None,
        as_finished: bool,
    ) -> Generator[Ended, None, None]:
        """Run items on the default backend and yield what each comes to, in their order or as they end.

        A bounded number of items is taken ahead of those that have ended. Closing it cancels what runs.

        Args:
            items: where `count` is None one may be long in coming: they are taken in a thread of their own.
            count: how many items there are, where they are at hand: they may begin in a better order than theirs.

        Raises:
            KeyboardInterrupt, SystemExit: an item's program raised it; it ends the batch.
        """
        running: dict[int, Item] = {}
        faulty: deque[Item] = deque()
        arguments = self._arguments(items, running, faulty)
        states = self.function.run_batch(
            arguments if count is None else _AtHand(arguments, count),
            num_threads=num_threads,
            generator_style=True,
            as_finished=as_finished,
            timeout_s=timeout_s,
        )
        for state in states:
            assert state.place is not None
            item = running.pop(state.place)
            while faulty and faulty[0].index < item.index:
                yield self._could_not_run(faulty.popleft())
            yield self._ended(item, outcome_of(state), state)
        yield from map(self._could_not_run, faulty)

    def _arguments(
        self, items: Iterator[Item], running: dict[int, Item], faulty: deque[Item]
    ) -> Iterator[dict[str, Any]]:
        """The arguments of the items that can be run, which are noted in `running` by their place among them."""
        place = 0
        for item in items:
            if item.fault is not None or item.arguments is None:
                faulty.append(item)
                continue
            running[place] = item
            place += 1
            yield {**self.arguments, **item.arguments}

    def _could_not_run(self, item: Item) -> Ended:
        return self._ended(item, Outcome({}, None, UsageError(str(item.fault))), None)

    def _ended(self, item: Item, outcome: Outcome, state: pt.ProgramState | None) -> Ended:
        if isinstance(outcome.error, KeyboardInterrupt | SystemExit):
            raise outcome.error
        line = result_line(
            item.index,
            item.arguments,
            outcome,
            error=None if outcome.error is None else self._reason(outcome.error),
            more={"text": _text(state)} if self.with_text else {},
        )
        return Ended(item.index, line, outcome.error is not None, state)

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, UsageError):
            return str(error)
        return reason_of(error, file_of(self.function))


class _AtHand:
    """Arguments that can be taken ahead of their turn without waiting, though they are not all in memory."""

    def __init__(self, arguments: Iterator[dict[str, Any]], count: int) -> None:
        self._arguments = arguments
        self._count = count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._arguments

    def __len__(self) -> int:
        return self._count


def _text(state: pt.ProgramState | None) -> str | None:
    """The program's text; None where it was not run, or a part of it failed."""
    try:
        return None if state is None else state.text()
    except pt.PalmetteError:
        return None
