"""Numbers within bounds."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, Derivatives, accepts

from palmette.constrained import Grammar, UnsatisfiableGrammarError, compile_grammar
from palmette.constrained.json_numbers import Bounds, integer, number
from palmette.constrained.rules import ALL_BYTES, RuleRef, Rules
from palmette.constrained.simplify import simplify

_ENDS = st.none() | st.decimals(-200, 200, places=2) | st.integers(-1200, 1200).map(Decimal)
_VALUES = st.decimals(-1300, 1300, places=3) | st.integers(-1300, 1300).map(Decimal)


def spelled(value: Decimal, zeros: int) -> str:
    """`value` in JSON, with needless zeros."""
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if not zeros:
        return text
    return text + ("" if "." in text else ".") + "0" * zeros


def reference(bounds: Bounds, whole: bool) -> Derivatives | None:
    """A slow recogniser of the numbers in `bounds`, or None if there are none."""
    try:
        return Derivatives(simplify(Rules("n", {"n": (integer if whole else number)(bounds)}), ALL_BYTES))
    except UnsatisfiableGrammarError:
        return None


@settings(max_examples=300, deadline=None)
@given(_ENDS, _ENDS, st.booleans(), st.booleans(), _VALUES, st.integers(0, 2), st.booleans())
def test_bounds_are_exact(
    low: Decimal | None, high: Decimal | None, open_low: bool, open_high: bool, value: Decimal, zeros: int, near: bool
) -> None:
    """A decimal is accepted exactly when it lies within the bounds, however many zeros it ends in."""
    bounds = Bounds(low, high, open_low and low is not None, open_high and high is not None)
    if near and low is not None:
        value = low + value / 100000
    recogniser = reference(bounds, whole=False)
    accepted = recogniser is not None and recogniser.accepts(
        recogniser.after_all(RuleRef("n"), spelled(value, zeros).encode())
    )
    assert accepted == (value in bounds)


@settings(max_examples=300, deadline=None)
@given(_ENDS, _ENDS, st.booleans(), st.booleans(), st.integers(-1300, 1300), st.sampled_from(["", ".0"]))
def test_integer_bounds_are_exact(
    low: Decimal | None, high: Decimal | None, open_low: bool, open_high: bool, value: int, suffix: str
) -> None:
    """An integer is accepted exactly when it lies within the bounds, with or without .0."""
    bounds = Bounds(low, high, open_low and low is not None, open_high and high is not None)
    recogniser = reference(bounds, whole=True)
    accepted = recogniser is not None and recogniser.accepts(
        recogniser.after_all(RuleRef("n"), f"{value}{suffix}".encode())
    )
    assert accepted == (Decimal(value) in bounds)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "number"},
            ["-0.5e+3", "1E5", "0", "1e-07", "1e307"],
            ["01", "1.", "-", ".5", "3.5.5", "1e999", "+1"],
        ),
        ({"type": "integer"}, ["0", "-12", "1.0", "123456789012345678901234567890"], ["1.5", "00", "1.", "1e2"]),
        ({"type": "number", "minimum": 0}, ["0", "0.0", "1e300", "2.5e-3"], ["-1", "-0.1"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.001", "1e-9", "10"], ["0", "0.0", "0e5", "-1"]),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, ["0", "0.25", "0.999"], ["1", "1.0", "-0.1", "5e1"]),
        ({"type": "number", "minimum": 1.5, "exclusiveMinimum": True}, ["1.51", "2"], ["1.5", "1.50", "1"]),
        ({"type": "integer", "minimum": 1.5, "maximum": 1e2}, ["2", "100", "100.0"], ["1", "101"]),
        (
            {"type": "integer", "minimum": -12345678901234567890},
            ["-12345678901234567890", "0"],
            ["-12345678901234567891"],
        ),
        ({"type": "number", "multipleOf": 1}, ["3", "3.0"], ["3.5"]),
    ],
)
def test_spellings(schema: object, good: list[str], bad: list[str]) -> None:
    """The number grammar of JSON, draft 4's boolean bounds, and the documented policies for exponents."""
    compiled = compile_grammar(Grammar.json_schema(schema), BYTES)
    assert [text for text in good if not accepts(compiled, text)] == []
    assert [text for text in bad if accepts(compiled, text)] == []
