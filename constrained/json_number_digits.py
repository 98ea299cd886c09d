"""Rules for the digits of numbers within bounds, compared digit by digit."""

from __future__ import annotations

from decimal import Decimal

from .json_number_sets import Bounds
from .rules import EMPTY, NOTHING, Choice, Literal, Node, Repeat, Sequence, byte_range, byte_set, optional

DIGIT = byte_range(ord("0"), ord("9"))
NONZERO = byte_range(ord("1"), ord("9"))
_DIGITS = Repeat(DIGIT, 0, None)
_ZEROS = Repeat(Literal(b"0"), 0, None)
_POINT_ZERO = optional(Sequence((Literal(b".0"), _ZEROS)))
_FRACTION = optional(Sequence((Literal(b"."), Repeat(DIGIT, 1, None))))
_E = byte_set(b"eE")

MOST_EXPONENT = 307
"""Exponents are at most this in size, so that one digit before the point is a finite number for readers of doubles."""
_WHOLE_EXPONENT = 16
"""From this exponent on a double's shortest spelling, of 17 digits, is an integer; ``json.dumps`` writes ``1e+16``."""
_WHOLE_FRACTION = optional(Sequence((Literal(b"."), Repeat(DIGIT, 1, _WHOLE_EXPONENT))))


def natural_integers(bounds: Bounds) -> Node:
    """Integers in `bounds`, which begin at zero or above, each also with ``.0`` or more zeros.

    Also in scientific notation, with an exponent of 16 or more and at most 16 digits after the point: the way in which
    ``json.dumps`` spells floats that large. Integers as long as a bound that is that large are in plain digits only.
    """
    low, high = _least_integer(bounds), _greatest_integer(bounds)
    first = max(_WHOLE_EXPONENT, len(str(low)))
    last = MOST_EXPONENT if high is None else len(str(high)) - 2
    spelled = Sequence((_between(low, high), _POINT_ZERO))
    if first > min(last, MOST_EXPONENT):
        return spelled
    large = Sequence((NONZERO, _WHOLE_FRACTION, _exponents(first, min(last, MOST_EXPONENT))))
    return Choice((spelled, large))


def _least_integer(bounds: Bounds) -> int:
    assert bounds.low is not None
    low = int(bounds.low.to_integral_value("ROUND_CEILING"))
    return low + (bounds.low_exclusive and low == bounds.low)


def _greatest_integer(bounds: Bounds) -> int | None:
    if bounds.high is None:
        return None
    high = int(bounds.high.to_integral_value("ROUND_FLOOR"))
    return high - (bounds.high_exclusive and high == bounds.high)


def natural_numbers(bounds: Bounds) -> Node:
    """Numbers in `bounds`, which begin at zero or above: in plain digits, or in scientific notation."""
    if bounds.low == 0 and bounds.high is None:
        return _free_numbers(may_be_zero=not bounds.low_exclusive)
    return Choice((_plain_numbers(bounds), scientific(bounds)))


def _free_numbers(*, may_be_zero: bool) -> Node:
    """Any digits, and any exponent.

    After more than one digit before the point an exponent is below 100, so that 200 digits still are a finite number.
    """
    exponent = optional(_exponent(MOST_EXPONENT))
    more = Choice(
        (Sequence((_FRACTION, exponent)), Sequence((Repeat(DIGIT, 1, None), _FRACTION, optional(_exponent(99)))))
    )
    zero = Sequence((_FRACTION, exponent)) if may_be_zero else Sequence((_NONZERO_FRACTION, exponent))
    return Choice((Sequence((NONZERO, more)), Sequence((Literal(b"0"), zero))))


def _exponent(most: int) -> Node:
    """An exponent of -307 to 99, or to 307."""
    to_99 = Repeat(DIGIT, 1, 2)
    to_307 = Choice((to_99, _between(100, MOST_EXPONENT)))
    if most > 99:
        return Sequence((_E, optional(byte_set(b"+-")), to_307))
    return Sequence((_E, Choice((Sequence((optional(Literal(b"+")), to_99)), Sequence((Literal(b"-"), to_307))))))


def scientific(bounds: Bounds, *, most: int = MOST_EXPONENT) -> Node:
    """Numbers in `bounds`, which begin at zero or above, as one digit but zero, a fraction, an exponent up to `most`.

    An exponent between those of the bounds leaves the digits free; at those of the bounds they are compared.
    """
    if bounds.high is not None and bounds.high <= 0:
        return NOTHING
    low = Decimal(f"1E-{MOST_EXPONENT}") if not bounds.low else bounds.low
    low_exclusive = bool(bounds.low) and bounds.low_exclusive
    first = low.adjusted()
    low_digits = _moved(low, -first)
    last, high_digits = (MOST_EXPONENT, None) if bounds.high is None else (bounds.high.adjusted(), bounds.high)
    high_digits = None if high_digits is None else _moved(high_digits, -last)
    options: list[Node] = []
    if first == last:
        within = Bounds(low_digits, high_digits or Decimal(10), low_exclusive, bounds.high_exclusive or not high_digits)
        return _at_exponent(first, within) if -MOST_EXPONENT <= first <= most else NOTHING
    if low_digits != 1 or low_exclusive:
        if first <= most:
            options.append(_at_exponent(first, Bounds(low_digits, Decimal(10), low_exclusive, True)))
        first += 1
    if high_digits is not None and last <= most:
        options.append(_at_exponent(last, Bounds(Decimal(1), high_digits, False, bounds.high_exclusive)))
        last -= 1
    first, last = max(first, -MOST_EXPONENT), min(last, most)
    if first <= last:
        options.append(Sequence((NONZERO, _FRACTION, _exponents(first, last))))
    return Choice(tuple(options))


def _moved(value: Decimal, places: int) -> Decimal:
    """`value` times a power of ten, with all of its digits whatever the context's precision is."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # neither infinite nor no number
    return Decimal((sign, digits, exponent + places))


def _at_exponent(exponent: int, digits: Bounds) -> Node:
    if digits.is_empty() or not -MOST_EXPONENT <= exponent <= MOST_EXPONENT:
        return NOTHING
    return Sequence((_plain_numbers(digits), _exponents(exponent, exponent)))


def _exponents(first: int, last: int) -> Node:
    """An exponent from `first` to `last`, which may have one needless zero before its only digit."""
    options: list[Node] = []
    if last >= 0:
        options.append(Sequence((optional(Literal(b"+")), _exponent_digits(max(first, 0), last))))
    if first < 0:
        options.append(Sequence((Literal(b"-"), _exponent_digits(max(-last, 1), -first))))
    return Sequence((_E, Choice(tuple(options))))


def _exponent_digits(least: int, most: int) -> Node:
    if (least, most) == (0, 9) or (least == 0 and most >= 99):
        short = Repeat(DIGIT, 1, 2) if most >= 99 else Sequence((optional(Literal(b"0")), DIGIT))
        return Choice((short, _between(100, most))) if most > 99 else short
    padded = Sequence((Literal(b"0"), _between(least, min(most, 9)))) if least <= 9 else NOTHING
    return Choice((_between(least, most), padded))


def exponent_literal(exponent: int) -> Node:
    """Exactly this exponent."""
    return _exponents(exponent, exponent)


def _plain_numbers(bounds: Bounds) -> Node:
    assert bounds.low is not None
    low_whole, low_digits = _split(bounds.low)
    if bounds.high is None:
        above = Sequence((_between(low_whole + 1, None), _FRACTION))
        edge = _with_fraction(low_whole, low_digits, None, bounds)
        return Choice((edge, above))
    high_whole, high_digits = _split(bounds.high)
    if low_whole == high_whole:
        return _with_fraction(low_whole, low_digits, high_digits, bounds)
    return Choice(
        (
            _with_fraction(low_whole, low_digits, None, bounds),
            Sequence((_between(low_whole + 1, high_whole - 1), _FRACTION)),
            _with_fraction(high_whole, None, high_digits, bounds),
        )
    )


_NONZERO_FRACTION = Sequence((Literal(b"."), _ZEROS, NONZERO, _DIGITS))


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
        return Sequence((_ZEROS, NONZERO, _DIGITS)) if must_rise else Repeat(DIGIT, least, None)

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
        longer = Sequence((NONZERO, Repeat(DIGIT, len(str(low)), None)))
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
        options.append(Sequence((NONZERO, Repeat(DIGIT, len(low_text), len(high_text) - 2))))
    return Choice(tuple(options))


def _same_length(low: str, high: str) -> Node:
    """Digit strings from `low` to `high`, all of that length: the digits that both share, then those between."""
    if low == high:
        return Literal(low.encode())
    shared = next(index for index, (a, b) in enumerate(zip(low, high, strict=True)) if a != b)
    options: list[Node] = []
    first, last = ord(low[shared]), ord(high[shared])
    rest = len(low) - shared - 1
    if low[shared + 1 :].strip("0"):
        options.append(Sequence((byte_range(first, first), _beyond(low[shared + 1 :], "9"))))
        first += 1
    if high[shared + 1 :].strip("9"):
        options.append(Sequence((byte_range(last, last), _beyond(high[shared + 1 :], "0"))))
        last -= 1
    if first <= last:
        options.append(_then_digits(byte_range(first, last), rest))
    between = options[0] if len(options) == 1 else Choice(tuple(options))
    return Sequence((Literal(low[:shared].encode()), between)) if shared else between


def _then_digits(node: Node, count: int) -> Node:
    return Sequence((node, Repeat(DIGIT, count, count))) if count else node


def _beyond(edge: str, extreme: str) -> Node:
    """Digit strings as long as `edge`, from it up to nines if `extreme` is 9, down to zeros if it is 0.

    Built from the last digit back to the first.
    """
    node: Node = EMPTY
    free = True  # nothing but the extreme is left of the edge, so that any digits will do
    for index in range(len(edge) - 1, -1, -1):
        digit, after = ord(edge[index]), len(edge) - index - 1
        if free and edge[index] == ("0" if extreme == "9" else "9"):
            continue
        step = 0 if free else 1
        low, high = (digit + step, ord("9")) if extreme == "9" else (ord("0"), digit - step)
        past = _then_digits(byte_range(low, high), after)
        if free:
            node = past
        else:
            same = Sequence((byte_range(digit, digit), node))
            node = same if low > high else Choice((same, past))
        free = False
    return Repeat(DIGIT, len(edge), len(edge)) if free else node
