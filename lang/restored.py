"""The state of an item whose result a file held already: what was written of it can be read, and nothing runs."""

from __future__ import annotations

from typing import Any, Never

from .batch_results import ResultsFile
from .errors import ProgramError
from .run import Run
from .source_line import calling_line
from .state import ProgramState
from .variables import FixedVariable


class RestoredState(ProgramState):
    """A state with the variables and the returned value of a line of a results file, as plain JSON values.

    It has no request tree and no meta info, and a text only where the line has one.
    """

    def __init__(self, fresh: ProgramState, result: dict[str, Any], source: str) -> None:
        super().__init__(fresh._execution, fresh._interpreter)
        self.place = fresh.place
        self._text: str | None = result.get("text")
        self._source = source
        for name, value in (result.get("variables") or {}).items():
            with self._execution.changed:
                self._interpreter.set_variable(name, FixedVariable(value))
        self._execution.returned(result.get("value"))
        self._execution.complete()

    def text(self) -> str:
        """The text that the file has.

        Raises:
            ProgramError: it has none.
        """
        if self._text is None:
            self._refuse()
        return self._text

    def get_meta_info(self, name: str) -> Never:
        """Nothing: refuse.

        Raises:
            UnknownVariableError: there is no such variable.
            ProgramError: always else.
        """
        self._known(name)
        self._refuse("what its backend said of its answers")

    def _all_nodes(self) -> Never:
        self._refuse()

    def _text_is_over(self) -> Never:
        self._refuse()

    def _refuse(self, what: str = "the text of its program") -> Never:
        raise ProgramError(
            f"item {self.place} was not run: its variables were read from {self._source}, which does not hold {what}; "
            "run it without that file to have that",
            line=calling_line(),
        )


class RestoredRun:
    """In the place of a run: a line of a results file, read when its state is wanted."""

    def __init__(self, run: Run, results: ResultsFile) -> None:
        self._run = run
        self._results = results

    @property
    def place(self) -> int:
        """The item's place."""
        return self._run.place

    def load(self) -> RestoredState:
        """Read the line."""
        return RestoredState(self._run.state, self._results.result_of(self.place), str(self._results.path))
