"""Sets of numbers, as the keywords of JSON Schema describe them. Arithmetic is exact: no floats."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction


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

    def without(self, values: Iterable[Decimal]) -> list[Bounds]:
        """The intervals that are left when `values` are taken out, in their order, none of them empty."""
        left = []
        rest = self
        for value in sorted({value for value in values if value in self}):
            left.append(rest & Bounds(high=value, high_exclusive=True))
            rest &= Bounds(low=value, low_exclusive=True)
        return [part for part in (*left, rest) if not part.is_empty()]


_End = tuple[Decimal | None, bool]


def _tighter(first: _End, second: _End, sign: int) -> _End:
    """The end of an interval that leaves less; `sign` is 1 for lower ends, -1 for upper ones."""
    if first[0] is None or second[0] is None:
        return second if first[0] is None else first
    if first[0] == second[0]:
        return first[0], first[1] or second[1]
    return first if (first[0] > second[0]) == (sign > 0) else second


@dataclass(frozen=True, slots=True)
class NumberSet:
    """A conjunction over numbers: what the keywords of one or more schemas ask of a number.

    Attributes:
        bounds: an interval.
        whole: True, integers only (``1.0`` is one); False, only what is no integer; None, both.
        multiples: the number is a multiple of each, which are positive.
        not_multiples: and of none of these, which are positive.
        excluded: and none of these, whatever their spelling.
    """

    bounds: Bounds = Bounds()
    whole: bool | None = None
    multiples: tuple[Decimal, ...] = ()
    not_multiples: tuple[Decimal, ...] = ()
    excluded: tuple[Decimal, ...] = ()


def admits_number(numbers: NumberSet, value: Decimal) -> bool:
    """Whether `value` is one of `numbers`."""
    if value not in numbers.bounds or value in numbers.excluded:
        return False
    if numbers.whole is not None and numbers.whole != is_multiple(value, Decimal(1)):
        return False
    if not all(is_multiple(value, divisor) for divisor in numbers.multiples):
        return False
    return not any(is_multiple(value, divisor) for divisor in numbers.not_multiples)


def is_multiple(value: Decimal, divisor: Decimal) -> bool:
    """Whether `value` is an integer times `divisor`, which is positive."""
    return (Fraction(value) / Fraction(divisor)).denominator == 1


def common_multiple(divisors: Iterable[Decimal]) -> Decimal | None:
    """The least positive number that is a multiple of all `divisors`, which are positive; None where there are none."""
    exact = [Fraction(divisor) for divisor in divisors]
    if not exact:
        return None
    places = math.lcm(*(value.denominator for value in exact))
    scaled = math.lcm(*(int(value * places) for value in exact))
    return to_decimal(Fraction(scaled, places))


def to_decimal(value: Fraction) -> Decimal:
    """`value`, whose denominator divides a power of ten, with all of its digits."""
    places = 0
    while 10**places % value.denominator:
        places += 1
    digits = str(int(value * 10**places))
    return Decimal(f"{digits}E-{places}")
