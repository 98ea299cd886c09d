"""Rules for JSON numbers within bounds.

Bounds are exact. Two policies, so that every allowed text is also a finite number for its reader: exponents are at most
307, and a number with a bound other than zero is written without an exponent. Integers may end in ``.0``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from .rules import EMPTY, NOTHING, Choice, Literal, Node, Repeat, Sequence, byte_range, byte_set, optional

DIGIT = byte_range(ord("0"), ord("9"))
_NONZERO = byte_range(ord("1"), ord("9"))
_DIGITS = Repeat(DIGIT, 0, None)
_ZEROS = Repeat(Literal(b"0"), 0, None)
_MINUS = Literal(b"-")
_POINT_ZERO = optional(Literal(b".0"))
_NATURAL = Choice((Literal(b"0"), Sequence((_NONZERO, _DIGITS))))
_FRACTION = Sequence((Literal(b"."), Repeat(DIGIT, 1, None)))
_EXPONENT = Sequence(
    (
        byte_set(b"eE"),
        optional(byte_set(b"+-")),
        Choice(
            (
                Repeat(DIGIT, 1, 2),
                Sequence((byte_set(b"12"), DIGIT, DIGIT)),
                Sequence((Literal(b"30"), byte_range(ord("0"), ord("7")))),
            )
        ),
    )
)

ANY_NUMBER = Sequence((optional(_MINUS), _NATURAL, optional(_FRACTION), optional(_EXPONENT)))
ANY_INTEGER = Sequence((optional(_MINUS), _NATURAL, _POINT_ZERO))


@dataclass(frozen=True, slots=True)
class Bounds:
    """An interval of numbers; None is unbounded. An exclusive end is not in it."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_exclusive: bool = False
    high_exclusive: bool = False

    def __contains__(self, value: Decimal) -> bool:
        above = self.low is None or value > self.low or (value == self.low and not self.low_exclusive)
        below = self.high is None or value < self.high or (value == self.high and not self.high_exclusive)
        return above and below

    def __and__(self, other: Bounds) -> Bounds:
        low, low_exclusive = _tighter((self.low, self.low_exclusive), (other.low, other.low_exclusive), 1)
        high, high_exclusive = _tighter((self.high, self.high_exclusive), (other.high, other.high_exclusive), -1)
        return Bounds(low, high, low_exclusive, high_exclusive)

    def negated(self) -> Bounds:
        """The numbers whose negative is in this interval."""
        return Bounds(
            None if self.high is None else self.high.copy_negate(),
            None if self.low is None else self.low.copy_negate(),
            self.high_exclusive,
            self.low_exclusive,
        )

    def not_negative(self) -> Bounds:
        """The part from zero on."""
        if self.low is None or self.low < 0:
            return Bounds(Decimal(0), self.high, False, self.high_exclusive)
        return self

    def is_empty(self) -> bool:
        """Whether no number is in it."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_exclusive or self.high_exclusive))


_End = tuple[Decimal | None, bool]


def _tighter(first: _End, second: _End, sign: int) -> _End:
    """The end of an interval that leaves less; `sign` is 1 for lower ends, -1 for upper ones."""
    if first[0] is None or second[0] is None:
        return second if first[0] is None else first
    if first[0] == second[0]:
        return first[0], first[1] or second[1]
    return first if (first[0] > second[0]) == (sign > 0) else second


def integer(bounds: Bounds) -> Node:
    """The integers in `bounds`, each also with ``.0``."""
    if bounds == Bounds():
        return ANY_INTEGER
    return _signed(bounds, _natural_integers)


def number(bounds: Bounds) -> Node:
    """The numbers in `bounds`."""
    if bounds == Bounds():
        return ANY_NUMBER
    return _signed(bounds, _natural_numbers)


def _signed(bounds: Bounds, natural: Callable[[Bounds], Node]) -> Node:
    options: list[Node] = []
    positive, negative = bounds.not_negative(), bounds.negated().not_negative()
    if not positive.is_empty():
        options.append(natural(positive))
    if not negative.is_empty():
        options.append(Sequence((_MINUS, natural(negative))))
    return Choice(tuple(options))


def _natural_integers(bounds: Bounds) -> Node:
    assert bounds.low is not None
    low = int(bounds.low.to_integral_value("ROUND_CEILING"))
    low += bounds.low_exclusive and low == bounds.low
    if bounds.high is None:
        return Sequence((_between(low, None), _POINT_ZERO))
    high = int(bounds.high.to_integral_value("ROUND_FLOOR"))
    high -= bounds.high_exclusive and high == bounds.high
    return Sequence((_between(low, high), _POINT_ZERO))


def _natural_numbers(bounds: Bounds) -> Node:
    assert bounds.low is not None
    if bounds.high is None and bounds.low == 0:
        mantissa = _nonzero_mantissa() if bounds.low_exclusive else Sequence((_NATURAL, optional(_FRACTION)))
        return Sequence((mantissa, optional(_EXPONENT)))
    low_whole, low_digits = _split(bounds.low)
    if bounds.high is None:
        above = Sequence((_between(low_whole + 1, None), optional(_FRACTION)))
        edge = _with_fraction(low_whole, low_digits, None, bounds)
        return Choice((edge, above))
    high_whole, high_digits = _split(bounds.high)
    if low_whole == high_whole:
        return _with_fraction(low_whole, low_digits, high_digits, bounds)
    return Choice(
        (
            _with_fraction(low_whole, low_digits, None, bounds),
            Sequence((_between(low_whole + 1, high_whole - 1), optional(_FRACTION))),
            _with_fraction(high_whole, None, high_digits, bounds),
        )
    )


def _nonzero_mantissa() -> Node:
    nonzero_fraction = Sequence((Literal(b"."), _ZEROS, _NONZERO, _DIGITS))
    return Choice((Sequence((_NONZERO, _DIGITS, optional(_FRACTION))), Sequence((Literal(b"0"), nonzero_fraction))))


def _split(value: Decimal) -> tuple[int, str]:
    """Whole part, and the digits after the point without zeros at the end."""
    whole, _, digits = format(value, "f").partition(".")
    return int(whole), digits.rstrip("0")


def _with_fraction(whole: int, low: str | None, high: str | None, bounds: Bounds) -> Node:
    """`whole`, and a fraction between the fractions `low` and `high` (digits; None: no bound on that side)."""
    fraction = _Fraction(low, high, bounds)
    after_point = fraction.digits()
    options: list[Node] = [Sequence((Literal(b"."), after_point))]
    if fraction.may_be_zero():
        options.append(EMPTY)
    return Sequence((Literal(str(whole).encode()), Choice(tuple(options))))


class _Fraction:
    """Digits after a point, between two bounds, compared digit by digit."""

    def __init__(self, low: str | None, high: str | None, bounds: Bounds) -> None:
        self._low = low
        self._high = high
        self._bounds = bounds
        self._length = max(len(low or ""), len(high or ""))

    def may_be_zero(self) -> bool:
        """Whether no digits at all (or only zeros) are within the bounds."""
        above = self._low is None or (self._low == "" and not self._bounds.low_exclusive)
        below = self._high is None or self._high != "" or not self._bounds.high_exclusive
        return above and below

    def digits(self) -> Node:
        """One or more digits; built from the last compared digit back to the first."""
        at_low, at_high = self._low is not None, self._high is not None
        after = {key: self._past_the_bounds(*key) for key in _EDGES}
        for index in reversed(range(self._length)):
            after = {key: self._from_digit(index, *key, after) for key in _EDGES}
        return self._at_least_one(at_low, at_high, after)

    def _at_least_one(self, at_low: bool, at_high: bool, after: dict[tuple[bool, bool], Node]) -> Node:
        if self._length:
            return _required(after[at_low, at_high])
        return self._past_the_bounds(at_low, at_high, least=1)

    def _past_the_bounds(self, at_low: bool, at_high: bool, *, least: int = 0) -> Node:
        """The rest where all digits of the bounds are taken; `at_low`: so far equal to the lower bound."""
        must_rise = at_low and self._bounds.low_exclusive
        must_stay = at_high
        if must_stay and (self._bounds.high_exclusive or must_rise):
            return NOTHING
        if must_stay:
            return Repeat(Literal(b"0"), least, None)
        return Sequence((_ZEROS, _NONZERO, _DIGITS)) if must_rise else Repeat(DIGIT, least, None)

    def _from_digit(self, index: int, at_low: bool, at_high: bool, after: dict[tuple[bool, bool], Node]) -> Node:
        """The rest from digit `index` on: end here if that is within the bounds, or take a digit."""
        if not at_low and not at_high:
            return _DIGITS
        low = int((self._low or "")[index : index + 1] or "0") if at_low else 0
        high = int((self._high or "")[index : index + 1] or "0") if at_high else 9
        by_edge: dict[tuple[bool, bool], list[int]] = {}
        for digit in range(low, high + 1):
            by_edge.setdefault((at_low and digit == low, at_high and digit == high), []).append(ord("0") + digit)
        options: list[Node] = [Sequence((byte_set(digits), after[edge])) for edge, digits in by_edge.items()]
        may_end = self._may_end(index, at_low, at_high)
        return Choice((EMPTY, *options)) if may_end else Choice(tuple(options))

    def _may_end(self, index: int, at_low: bool, at_high: bool) -> bool:
        """Whether zeros for ever, from digit `index` on, are within the bounds."""
        low_rest = (self._low or "")[index:]
        high_rest = (self._high or "")[index:]
        above = not at_low or (not low_rest and not self._bounds.low_exclusive)
        below = not at_high or bool(high_rest) or not self._bounds.high_exclusive
        return above and below


_EDGES = ((False, False), (False, True), (True, False), (True, True))


def _required(node: Node) -> Node:
    """`node` of `_Fraction._from_digit` without the option to end before the first digit."""
    if not isinstance(node, Choice):
        return Repeat(DIGIT, 1, None)
    return Choice(tuple(option for option in node.options if option != EMPTY))


def _between(low: int, high: int | None) -> Node:
    """Decimal spellings of the integers `low` to `high`, `low` not negative."""
    if high is None:
        longer = Sequence((_NONZERO, Repeat(DIGIT, len(str(low)), None)))
        return Choice((_same_length(str(low), "9" * len(str(low))), longer))
    if low > high:
        return NOTHING
    low_text, high_text = str(low), str(high)
    if len(low_text) == len(high_text):
        return _same_length(low_text, high_text)
    options = [
        _same_length(low_text, "9" * len(low_text)),
        _same_length("1" + "0" * (len(high_text) - 1), high_text),
    ]
    if len(high_text) - len(low_text) > 1:
        options.append(Sequence((_NONZERO, Repeat(DIGIT, len(low_text), len(high_text) - 2))))
    return Choice(tuple(options))


def _same_length(low: str, high: str) -> Node:
    """Digit strings from `low` to `high`, all of that length; built from the last digit back to the first."""
    free = at_low = at_high = at_both = EMPTY if low <= high else NOTHING
    after: dict[tuple[bool, bool], Node] = dict(zip(_EDGES, (free, at_high, at_low, at_both), strict=True))
    for length, (a, b) in enumerate(zip(reversed(low), reversed(high), strict=True), 1):
        after = {edge: _digit_then(edge, a, b, after) for edge in _EDGES}
        after[False, False] = Repeat(DIGIT, length, length)
    return after[True, True]


def _digit_then(edge: tuple[bool, bool], a: str, b: str, after: dict[tuple[bool, bool], Node]) -> Node:
    at_low, at_high = edge
    low, high = ord(a) if at_low else ord("0"), ord(b) if at_high else ord("9")
    by_edge: dict[tuple[bool, bool], list[int]] = {}
    for digit in range(low, high + 1):
        by_edge.setdefault((at_low and digit == low, at_high and digit == high), []).append(digit)
    options: list[Node] = [Sequence((byte_set(digits), after[key])) for key, digits in by_edge.items()]
    return Choice(tuple(options))
