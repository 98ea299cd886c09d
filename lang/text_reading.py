"""One reading of a branch's text, or of a variable's, while it comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from palmette.runtime.program import Generate

from .errors import ProgramError
from .partial_json import PartialJSON
from .reasoning import ReasoningStream
from .source_line import calling_line
from .text_cursor import TextCursor
from .variables import NodeVariable, TextVariable, nodes_of

if TYPE_CHECKING:
    from .state import ProgramState


class TextReading:
    """Where a reading stands: `poll` for new pieces, which `shown` cuts to what is to be read; `rest` at the end.

    Raises:
        ProgramError: `answer` is negative; when polled, what `ProgramState.text_iter` names.
    """

    def __init__(self, state: ProgramState, name: str | None, answer: int) -> None:
        self._state = state
        self._name = name
        self._answer = answer
        self._part: ReasoningStream | None = None
        execution, branch = state._execution, state._interpreter
        with execution.changed:
            execution.stream_pending()
        if name is None:
            self._cursor = TextCursor(execution.tree, lambda: branch.path, state._text_is_over)
        else:
            self._cursor = TextCursor(execution.tree, self._nodes, lambda: True, answer=answer)
        self.poll = self._cursor.poll

    def shown(self, pieces: Sequence[str]) -> Iterator[str]:
        """What of new pieces of text is to be read."""
        return iter(pieces) if self._part is None else filter(None, map(self._part.push, pieces))

    def rest(self) -> Iterator[str]:
        """What was held back until the end was known."""
        return iter(()) if self._part is None else filter(None, [self._part.finish()])

    def _nodes(self) -> Sequence[int] | None:
        """The variable's nodes, or None while it may yet be set."""
        assert self._name is not None
        variable = self._state._find(self._name)
        if variable is None:
            return None
        if not isinstance(variable, NodeVariable | TextVariable):
            raise ProgramError(
                f's["{self._name}"] is no text of this branch, so there is nothing to iterate; read s["{self._name}"]',
                line=calling_line(),
            )
        self._check_answer(variable)
        if isinstance(variable, NodeVariable) and variable.part is not None:
            self._part = variable.part.stream()
        return nodes_of(variable)

    def _check_answer(self, variable: NodeVariable | TextVariable) -> None:
        node = self._state._execution.tree.records[nodes_of(variable)[0]].node if nodes_of(variable) else None
        answers = node.n if isinstance(node, Generate) and isinstance(variable, NodeVariable) else 1
        if not 0 <= self._answer < answers:
            raise ProgramError(
                f's["{self._name}"] has {answers} answer(s), counted from 0, so there is no answer {self._answer}',
                line=calling_line(),
            )


class GrowingValue:
    """The value of JSON text that comes in pieces. Text that turns out to be no JSON has none."""

    def __init__(self) -> None:
        self._json: PartialJSON | None = PartialJSON()
        self._last: Any = None

    def push(self, text: str) -> Iterator[Any]:
        """The value, if the text makes more of it certain."""
        if self._json is None:
            return
        try:
            self._json.push(text)
        except ValueError:
            self._json = None
            return
        value = self._json.value
        if value != self._last:
            self._last = value
            yield value
