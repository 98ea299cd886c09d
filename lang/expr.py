"""Expressions: the frozen values that `s += ...` takes. `+` joins them and strings; building them runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from palmette.constrained.grammar import Grammar
from palmette.runtime.program import SelectMethod

from .chat_rendering import Role
from .reasoning import ThinkTags


class Reader(Protocol):
    """How an answer's text becomes the value of its variable."""

    @property
    def name(self) -> str:
        """What the text should be, for errors: ``int``, ``Event``."""

    def read(self, text: str) -> Any:
        """The value. Raises ValueError, which says why there is none."""


class Expr:
    """A piece of a program. `+` joins it to another, or to a string."""

    __slots__ = ()

    def __add__(self, other: str | Expr) -> Expr:
        return joined((self, as_expr(other, "`+`")))

    def __radd__(self, other: str | Expr) -> Expr:
        return joined((as_expr(other, "`+`"), self))

    def __format__(self, spec: str) -> NoReturn:
        raise TypeError(
            "an expression cannot be formatted into a string, as its text is not known yet: "
            "write s += 'before ' + pt.gen('x') + ' after', or pt.template('before {x} after', x=...)"
        )


@dataclass(frozen=True, slots=True)
class Constant(Expr):
    """Text that the program gives. It never spells a special token."""

    text: str


@dataclass(frozen=True, slots=True)
class GenExpr(Expr):
    """A generation. `options` are the sampling options given at the call; they win over the function's defaults.

    `think` splits the answer from the reasoning before it; `reader` makes a value of the answer.
    """

    name: str | None
    options: Mapping[str, Any]
    grammar: Grammar | None = None
    n: int = 1
    reader: Reader | None = None
    think: ThinkTags | None = None


@dataclass(frozen=True, slots=True)
class SelectExpr(Expr):
    """The best of `choices`."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """Opens a message of `role`."""

    role: Role


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    """Closes the open message, which must be of `role`."""

    role: Role


@dataclass(frozen=True, slots=True)
class ExprList(Expr):
    """Expressions one after another; never nested, and no two constants side by side."""

    items: tuple[Expr, ...]


def parts(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that `expr` is made of, in order."""
    return expr.items if isinstance(expr, ExprList) else (expr,)


def joined(expressions: Iterable[Expr]) -> Expr:
    """One expression for all of `expressions`, in order."""
    items: list[Expr] = []
    for expr in expressions:
        for part in parts(expr):
            last = items[-1] if items else None
            if isinstance(part, Constant) and isinstance(last, Constant):
                items[-1] = Constant(last.text + part.text)
            else:
                items.append(part)
    return items[0] if len(items) == 1 else ExprList(tuple(items))


def as_expr(value: object, where: str) -> Expr:
    """`value` as an expression.

    Raises:
        TypeError: it is neither a string nor an expression; `where` says in the message what took it.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Constant(value)
    hint = f"; write str({value!r}) for its text" if isinstance(value, int | float) else ""
    if value is None:
        hint = "; s.user(...) and its kin append their message themselves, without `s +=`"
    raise TypeError(
        f"{where} takes a string or an expression such as pt.gen(...) or pt.user(...), "
        f"not {type(value).__name__}: {value!r}{hint}"
    )
