"""Laws of expressions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import palmette as pt
from palmette.lang.expr import Constant, as_expr, joined, parts

pieces = st.lists(st.one_of(st.text(max_size=3), st.just(pt.gen("x")), st.just(pt.user("u"))), min_size=1, max_size=6)


@given(pieces, st.data())
def test_concatenation_is_associative(items: list[str | pt.Expr], data: st.DataObject) -> None:
    """However an expression is put together, it has the same parts, and no two constants side by side."""
    expressions = [as_expr(item, "test") for item in items]
    cut = data.draw(st.integers(0, len(items)))
    left, right = expressions[:cut], expressions[cut:]
    if left and right:
        assert joined([joined(left), joined(right)]) == joined(expressions)
    kinds = [isinstance(part, Constant) for part in parts(joined(expressions))]
    assert not any(first and second for first, second in pairwise(kinds))


def test_strings_join_from_both_sides() -> None:
    """A string may stand before or after an expression."""
    assert parts("a" + pt.gen("x") + "b") == (Constant("a"), pt.gen("x"), Constant("b"))


@pytest.mark.parametrize("value", [None, 3, 2.5, ["a"], object()])
def test_only_strings_and_expressions_join(value: Any) -> None:
    """Anything else raises a TypeError that says what is allowed."""
    with pytest.raises(TypeError, match="takes a string or an expression"):
        pt.gen("x") + value
    with pytest.raises(TypeError, match="takes a string or an expression"):
        value + pt.gen("x")


def test_an_expression_is_never_formatted() -> None:
    """An expression in an f-string is an error, not its repr in the prompt."""
    with pytest.raises(TypeError, match="cannot be formatted"):
        f"Answer: {pt.gen('x')}"
