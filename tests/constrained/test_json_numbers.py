"""Sets of numbers: intervals, integers, multiples, and numbers that are left out."""

from __future__ import annotations

import json
import math
import random
import time
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.reference import Derivatives

from palmette.constrained import GrammarLimitError, UnsatisfiableGrammarError
from palmette.constrained.json_number_machine import TableGraph
from palmette.constrained.json_numbers import Bounds, NumberSet, admits_number, lower_number
from palmette.constrained.rules import ALL_BYTES, NOTHING, Graph, RuleRef, Rules, postorder
from palmette.constrained.simplify import simplify

_ENDS = st.none() | st.decimals(-200, 200, places=2) | st.integers(-1200, 1200).map(Decimal)
_EXCLUDED = st.integers(-20, 20).map(Decimal) | st.decimals(-9, 9, places=1)
_STEPS = st.sampled_from([Decimal(text) for text in ("0", "1", "-1", "0.0001", "-0.5")])
_DIVISORS = st.sampled_from([Decimal(text) for text in ("1", "2", "0.5", "0.01", "3", "7", "0.3", "10", "100", "2.5")])


@st.composite
def number_sets(draw: st.DrawFn) -> NumberSet:
    """Sets of every kind."""
    low, high = draw(_ENDS), draw(_ENDS)
    if low is not None and high is not None and low > high and draw(st.booleans()):
        low, high = high, low
    bounds = Bounds(low, high, low is not None and draw(st.booleans()), high is not None and draw(st.booleans()))
    excluded: list[Decimal] = draw(st.lists(_EXCLUDED, max_size=3))
    whole: bool | None = draw(st.sampled_from([None, None, True, False]))
    multiples: list[Decimal] = draw(st.lists(_DIVISORS, max_size=2))
    others: list[Decimal] = draw(st.lists(_DIVISORS, max_size=1))
    return NumberSet(bounds, whole, tuple(multiples), tuple(others), tuple(excluded))


@st.composite
def values(draw: st.DrawFn, numbers: NumberSet) -> Decimal:
    """A number at, next to, or away from what `numbers` names."""
    places = draw(st.integers(0, 3))
    value = Decimal(draw(st.integers(-1300 * 10**places, 1300 * 10**places))).scaleb(-places)
    named = [end for end in (numbers.bounds.low, numbers.bounds.high, *numbers.excluded) if end is not None]
    if draw(st.booleans()) and named:
        value = draw(st.sampled_from(named)) + draw(_STEPS)
    if draw(st.booleans()) and numbers.multiples:
        value = math.prod(numbers.multiples, start=Decimal(1)) * draw(st.integers(-50, 50))
    return value


def recogniser(numbers: NumberSet) -> Derivatives | None:
    """A slow recogniser of `numbers`, or None if there are none."""
    try:
        return Derivatives(simplify(Rules("n", {"n": lower_number(numbers)}), ALL_BYTES))
    except UnsatisfiableGrammarError:
        return None


def accepts(found: Derivatives | None, text: str) -> bool:
    """Whether `found` recognises `text`."""
    return found is not None and found.accepts(found.after_all(RuleRef("n"), text.encode()))


def spelled(value: Decimal, zeros: int) -> str:
    """`value` in JSON without an exponent, with needless zeros."""
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text + ("" if "." in text or not zeros else ".") + "0" * zeros


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(0, 2))
def test_plain_digits_are_exact(data: st.DataObject, zeros: int) -> None:
    """A decimal is accepted exactly when the set has it, however many zeros it ends in."""
    numbers = data.draw(number_sets())
    value = data.draw(values(numbers))
    assert accepts(recogniser(numbers), spelled(value, zeros)) == admits_number(numbers, value)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(-9, 9))
def test_exponents_are_exact(data: st.DataObject, exponent: int) -> None:
    """Scientific notation is accepted only within the set; without divisors, wherever the set has the number."""
    numbers = data.draw(number_sets())
    value = data.draw(values(numbers))
    if data.draw(st.booleans()):
        value = value.scaleb(exponent)
    text = f"{value:e}" if value else "0"
    admitted = admits_number(numbers, value)
    accepted = accepts(recogniser(numbers), text)
    assert admitted or not accepted
    if numbers.whole is None and not numbers.multiples and not numbers.not_multiples:
        assert accepted == admitted


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(0, 2**32))
def test_every_way_leads_to_a_number_of_the_set(data: st.DataObject, seed: int) -> None:
    """Whatever bytes are allowed, one after the other, the text where it may end is JSON of a number in the set."""
    numbers = data.draw(number_sets())
    found = recogniser(numbers)
    if found is None:
        return
    chooser, state, text = random.Random(seed), found.start, ""
    for _ in range(14):
        allowed = [char for char in "0123456789.-+eE" if found.after(state, ord(char)) != NOTHING]
        if not allowed:
            break
        char = chooser.choice(allowed)
        state, text = found.after(state, ord(char)), text + char
        if found.accepts(state):
            assert admits_number(numbers, json.loads(text, parse_float=Decimal, parse_int=Decimal)), text


@settings(max_examples=300, deadline=None)
@given(st.data(), st.floats(allow_nan=False, allow_infinity=False, width=64), st.booleans())
def test_what_json_dumps_writes_is_accepted(data: st.DataObject, value: float, whole: bool) -> None:
    """A double within bounds is accepted as Python spells it; integers too, unless as large as a huge bound."""
    low, high = data.draw(st.sampled_from([(None, None), (Decimal(-5), None), (None, Decimal(0)), (Decimal(0), None)]))
    numbers = NumberSet(Bounds(low, high), whole or None)
    if 0 < abs(value) < 1e-307 or abs(value) >= 1e308:
        return
    text = json.dumps(value)
    assert accepts(recogniser(numbers), text) == admits_number(numbers, Decimal(text))


@pytest.mark.parametrize(
    ("numbers", "good", "bad"),
    [
        (
            NumberSet(),
            ["-0.5e+3", "1E5", "0", "1e-07", "1e307", "12345e99"],
            ["01", "1.", "-", ".5", "3.5.5", "1e308", "1e999", "+1", "12e100", "1e005"],
        ),
        (
            NumberSet(whole=True),
            ["0", "-12", "1.0", "1.000", "123456789012345678901234567890", "1e+16", "1.2345678901234567e+16", "9E307"],
            ["1.5", "00", "1.", "1e2", "1.23456789012345678e16", "1e308"],
        ),
        (NumberSet(Bounds(Decimal(0))), ["0", "0.0", "1e300", "2.5e-3", "-0", "-0.0"], ["-1", "-0.1"]),
        (
            NumberSet(Bounds(Decimal(0), low_exclusive=True)),
            ["0.001", "1e-9", "10"],
            ["0", "0.0", "0e5", "-1", "-0", "-0.0e1"],
        ),
        (
            NumberSet(Bounds(Decimal(0), Decimal(1), high_exclusive=True)),
            ["0", "0.25", "0.999", "5e-1", "9.99E-1", "1e-307", "1e-07"],
            ["1", "1.0", "-0.1", "5e1", "1e0", "1e1", "10e-1"],
        ),
        (
            NumberSet(Bounds(Decimal("-12.5"), Decimal(1500))),
            ["1.5e3", "1.4999e+03", "-1.25e1", "-1.2e01", "1.5e2", "-9e-5"],
            ["1.51e3", "-1.251e1", "2e3", "-2e1", "1e4"],
        ),
        (NumberSet(Bounds(Decimal("1.5"), Decimal(100)), True), ["2", "100", "100.0"], ["1", "101", "1e1"]),
        (NumberSet(Bounds(Decimal(10) ** 17), True), ["1e+18", "100000000000000000"], ["1e+16", "99999999999999999"]),
        (NumberSet(multiples=(Decimal(1),)), ["3", "3.0"], ["3.5"]),
        (NumberSet(multiples=(Decimal("0.01"),)), ["3", "3.25", "-3.250", "0"], ["3.255", "1e-05"]),
        (
            NumberSet(Bounds(Decimal(0)), multiples=(Decimal("1e-8"),)),
            ["1e-08", "1.2e-07", "1.25e-05", "0.00000012"],
            ["1e-09", "1.2e-08", "-1e-08"],
        ),
        (NumberSet(multiples=(Decimal(100000), Decimal(4))), ["0", "-300000", "100000.0"], ["50000", "100001"]),
        (NumberSet(whole=False), ["0.5", "-2.50", "1e-05"], ["0", "1", "1.0", "5e0"]),
        (NumberSet(not_multiples=(Decimal(2),)), ["1", "3.0", "2.5", "5e-1"], ["0", "2", "-4.0"]),
        (NumberSet(excluded=(Decimal(1),)), ["1.5", "-1", "2", "1.01e0"], ["1", "1.0", "1e0", "1.0e+00"]),
        (NumberSet(whole=True, excluded=(Decimal(0), Decimal(5))), ["1", "-5", "50"], ["0", "-0.0", "5", "5.0"]),
    ],
)
def test_spellings(numbers: NumberSet, good: list[str], bad: list[str]) -> None:
    """The number grammar of JSON, and the documented policies for exponents."""
    found = recogniser(numbers)
    assert [text for text in good if not accepts(found, text)] == []
    assert [text for text in bad if accepts(found, text)] == []


@pytest.mark.parametrize(
    "numbers",
    [
        NumberSet(Bounds(Decimal("1.2"), Decimal("1.8")), True),
        NumberSet(Bounds(Decimal(0), Decimal("1.5"), True, True), multiples=(Decimal("0.5"), Decimal("0.3"))),
        NumberSet(Bounds(Decimal(3), Decimal(3)), excluded=(Decimal("3.0"),)),
        NumberSet(multiples=(Decimal(4),), not_multiples=(Decimal(2),)),
        NumberSet(whole=True, not_multiples=(Decimal("0.5"),)),
    ],
)
def test_empty_sets_match_nothing(numbers: NumberSet) -> None:
    """A set without numbers has no text."""
    assert recogniser(numbers) is None


def test_zeros_of_a_divisor_cost_few_states() -> None:
    """Of a number that must end in zeros only how many it ends in counts, not all that it leaves."""
    nodes = postorder(lower_number(NumberSet(multiples=(Decimal(7_000_000),))))
    assert [
        len(node.spec.moves) < 60 for node in nodes if isinstance(node, Graph) and isinstance(node.spec, TableGraph)
    ] == [True]


@pytest.mark.parametrize("divisor", ["100000.007", "0.123456789", "1e-2000"])
def test_too_many_remainders_are_refused(divisor: str) -> None:
    """A divisor with too many remainders, or too many digits, ends with a limit error and soon."""
    start_s = time.process_time()
    with pytest.raises(GrammarLimitError):
        lower_number(NumberSet(multiples=(Decimal(divisor),)))
    assert time.process_time() - start_s < 2


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**12), st.sampled_from([100_000_007, 123_456_789]))
def test_multiples_of_large_numbers_are_exact(count: int, divisor: int) -> None:
    """Remainders that are too many to list are followed one by one, and the shortest way to an end is known."""
    numbers = NumberSet(whole=True, multiples=(Decimal(divisor),))
    found = recogniser(numbers)
    assert accepts(found, str(count)) == admits_number(numbers, Decimal(count))
    assert accepts(found, f"-{count * divisor}.0")
    (graph,) = [node for node in postorder(lower_number(numbers)) if isinstance(node, Graph)]
    state = next(end for body, end in graph.spec.edges("start") if body == 7)
    first = next(k for k in range(20) if divisor * -(-7 * 10**k // divisor) < 8 * 10**k)  # 7 and k more digits
    assert graph.spec.cost(state, [1.0] * 11) == first


def test_equal_sets_are_lowered_once() -> None:
    """Most schemas ask for the same few sets."""
    assert lower_number(NumberSet(whole=True)) is lower_number(NumberSet(Bounds(), True))
