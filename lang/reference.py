"""Values that are not known yet, as parts of a prompt: `s.ref(...)` and `template`."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palmette.runtime.program import Generate, Reference, Select

from .errors import ProgramError
from .expr import Expr, Reader, as_expr, joined
from .source_line import SourceLine
from .tree import ProgramTree
from .types import JsonAnswer
from .variables import FixedVariable, GatheredVariable, NodeVariable, TextVariable, Variable, value_of

if TYPE_CHECKING:
    from .execution import Execution


@dataclass(frozen=True, slots=True)
class RefExpr(Expr):
    """The text of a variable, filled in by the runtime once it is known.

    `separator` stands between the values of a variable that has several.
    """

    execution: Execution
    name: str
    variable: Variable
    separator: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A node whose answer a reference takes; `unquoted` as in the wire's `Reference`."""

    node_id: int
    unquoted: bool = False


def is_on_the_wire(variable: Variable, tree: ProgramTree) -> bool:
    """Whether the runtime itself can fill in the variable's text; else the program waits for its value."""
    if isinstance(variable, GatheredVariable):
        return all(is_on_the_wire(member, tree) for member in variable.members)
    return not isinstance(variable, NodeVariable) or (variable.part is None and not _has_several(variable, tree))


def sources_of(expr: RefExpr, tree: ProgramTree, line: SourceLine) -> list[str | Source]:
    """What stands for a reference in the tree: text that is known, and nodes whose answers are to come.

    Raises:
        ProgramError: the variable has several values and no separator was given.
    """
    variable, separator = expr.variable, expr.separator
    if separator is None and (isinstance(variable, GatheredVariable) or _has_several(variable, tree)):
        raise ProgramError(
            f's.ref("{expr.name}") has several values; say what stands between them, '
            f'as in s.ref("{expr.name}", separator=", ")',
            line=line,
        )
    return _sources(variable, tree, separator or "")


def _sources(variable: Variable, tree: ProgramTree, separator: str) -> list[str | Source]:
    if isinstance(variable, GatheredVariable):
        found: list[str | Source] = []
        for place, member in enumerate(variable.members):
            found += [separator] if place else []
            found += _sources(member, tree, separator)
        return found
    if isinstance(variable, TextVariable):
        return [_source(node_id, tree) for node_id in variable.node_ids]
    if isinstance(variable, NodeVariable) and is_on_the_wire(variable, tree):
        return [Source(variable.node_id, unquoted=_is_string(variable.reader))]
    value = variable.value if isinstance(variable, FixedVariable) else value_of(variable, tree)
    return [separator.join(map(str, value)) if isinstance(value, list) else str(value)]


def _is_string(reader: Reader | None) -> bool:
    return isinstance(reader, JsonAnswer) and reader.is_string


def _source(node_id: int, tree: ProgramTree) -> str | Source:
    record = tree.records[node_id]
    return Source(node_id) if isinstance(record.node, Generate | Select | Reference) else record.text


def _has_several(variable: Variable, tree: ProgramTree) -> bool:
    if not isinstance(variable, NodeVariable):
        return False
    node = tree.records[variable.node_id].node
    return isinstance(node, Generate) and node.n > 1


def template(text: str, /, *args: Any, **fields: Any) -> Expr:
    """``text`` with its ``{fields}`` filled in as `str.format` does, where a field may be an expression.

    Nothing waits: ``pt.template("Sum up: {draft}", draft=s.ref("draft"))`` goes to the runtime as it is, and the draft
    takes its place there once it is written. ``{{`` and ``}}`` are braces.

    Args:
        text: the format string.
        args, fields: values and expressions, by place and by name.

    Raises:
        TypeError: a field has no value, a value no field, or an expression is converted or formatted.
        ValueError: `text` is not a format string.

    >>> import palmette as pt
    >>> @pt.function
    ... def greet(s: pt.ProgramState, name: str) -> None:
    ...     s += pt.template("Hello {name}, {rest}", name=name, rest=pt.gen("rest"))
    >>> greet.run("Ada", backend=pt.MockBackend(["how are you?"])).text()
    'Hello Ada, how are you?'
    """
    if not isinstance(text, str):
        raise TypeError(f"template() takes a string, not {type(text).__name__}: {text!r}")
    values = _Fields(args, fields)
    expr = joined([as_expr("", "template()"), *_pieces(text, values)])
    values.check_all_used()
    return expr


def _pieces(text: str, values: _Fields) -> Iterator[Expr]:
    for literal, field, spec, conversion in string.Formatter().parse(text):
        if literal:
            yield as_expr(literal, "template()")
        if field is not None:
            yield values.piece(field, spec or "", conversion)


class _Fields(string.Formatter):
    """The values that a template was given, and which of them it has used."""

    def __init__(self, args: Sequence[Any], fields: Mapping[str, Any]) -> None:
        self._args = args
        self._fields = fields
        self._used: set[int | str] = set()
        self._next = 0

    def piece(self, field: str, spec: str, conversion: str | None) -> Expr:
        """The expression of one field."""
        value = self._look_up(field)
        if not isinstance(value, Expr):
            return as_expr(self.format_field(self.convert_field(value, conversion), spec), "template()")
        if spec or conversion:
            how = f"!{conversion}" if conversion else f":{spec}"
            raise TypeError(
                f"the field {{{field}{how}}} is an expression, whose text is not known yet, so it cannot be formatted; "
                f"write {{{field}}}"
            )
        return value

    def check_all_used(self) -> None:
        """Raise TypeError if a value has no field."""
        given: list[int | str] = [*range(len(self._args)), *self._fields]
        unused = [repr(key) for key in given if key not in self._used]
        if unused:
            raise TypeError(f"template() was given {', '.join(unused)}, but its text has no such field")

    def _look_up(self, field: str) -> Any:
        if field == "" or field[0] in ".[":
            field = f"{self._next}{field}"
            self._next += 1
        elif field[0].isdigit() and self._next:
            raise TypeError(
                f"template() numbers its fields by place from the first {{}} on, so {{{field}}} cannot follow"
            )
        value, key = self.get_field(field, self._args, self._fields)
        self._used.add(key)
        return value

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The value of a field's first part."""
        if isinstance(key, int) and key < len(args):
            return args[key]
        if isinstance(key, str) and key in kwargs:
            return kwargs[key]
        raise TypeError(f"template() has a field {{{key}}}, which was not given")
