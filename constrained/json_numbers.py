"""Rules for JSON numbers: intervals, multiples, and numbers that are left out.

Exact decimal arithmetic decides. The policies of spelling, so that every allowed text is a finite number for readers of
doubles too, and bounds can be followed digit by digit:

- Exponents are at most 307 in size. A number whose sign alone is bounded may have any digits before its exponent; with
  other bounds the exponent follows scientific notation, with one digit but zero before the point.
- Integers may end in ``.0``, with more zeros; they have an exponent only where ``json.dumps`` writes one: from 16 on.
- A number that must, or must not, be a multiple of something has an exponent below -4, as ``json.dumps`` writes it; or
  any below that, where every number so small will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache

from .errors import GrammarLimitError
from .json_number_digits import natural_integers, natural_numbers
from .json_number_machine import divisible
from .json_number_sets import Bounds, NumberSet, admits_number, common_multiple, is_multiple
from .rules import NOTHING, Choice, Literal, Node, Sequence, optional

__all__ = ["ANY_INTEGER", "ANY_NUMBER", "Bounds", "NumberSet", "admits_number", "integer", "lower_number", "number"]

_MINUS = Literal(b"-")
_MOST_DIGITS = 1000
_ONE = Decimal(1)


@lru_cache(maxsize=4096)
def lower_number(numbers: NumberSet) -> Node:
    """The JSON texts of `numbers`; NOTHING where there are none.

    Raises:
        GrammarLimitError: a number of more than 1000 digits, or more remainders than the automaton's states.
    """
    _check_size(numbers)
    numbers = _canonical(numbers)
    if any(is_multiple(divisor, other) for divisor in numbers.multiples for other in numbers.not_multiples):
        return NOTHING
    if numbers.multiples or numbers.not_multiples:
        return _mirrored(numbers)
    interval = integer if numbers.whole else number
    return _choice([interval(part) for part in numbers.bounds.without(numbers.excluded)])


def _canonical(numbers: NumberSet) -> NumberSet:
    """An equal set with at most one divisor in `multiples`, or `whole` alone where that says it all."""
    multiples = (*numbers.multiples, *([_ONE] if numbers.whole else []))
    divisor = common_multiple(multiples)
    others = _telling(divisor, (*numbers.not_multiples, *([_ONE] if numbers.whole is False else [])))
    if divisor == 1 and not others:
        return replace(numbers, whole=True, multiples=())
    return replace(numbers, whole=None, multiples=() if divisor is None else (divisor,), not_multiples=others)


def _telling(divisor: Decimal | None, others: tuple[Decimal, ...]) -> tuple[Decimal, ...]:
    """`others`, of which nothing is a multiple, less those that this is already true of as of another one."""
    kept: list[Decimal] = []
    for other in sorted(set(others)):
        whole = other if divisor is None else common_multiple((divisor, other))
        if whole is not None and not any(is_multiple(whole, known) for known in kept):
            kept.append(other)
    return tuple(kept)


def _check_size(numbers: NumberSet) -> None:
    ends = [end for end in (numbers.bounds.low, numbers.bounds.high) if end is not None]
    for value in (*ends, *numbers.multiples, *numbers.not_multiples, *numbers.excluded):
        _, digits, exponent = value.as_tuple()
        if len(digits) + abs(int(exponent)) > _MOST_DIGITS:
            raise GrammarLimitError(f"a number of the schema has more than {_MOST_DIGITS} digits")


def integer(bounds: Bounds) -> Node:
    """The integers in `bounds`, each also with ``.0``."""
    return ANY_INTEGER if bounds == Bounds() else _signed(bounds, natural_integers)


def number(bounds: Bounds) -> Node:
    """The numbers in `bounds`."""
    return ANY_NUMBER if bounds == Bounds() else _signed(bounds, natural_numbers)


def _signed(bounds: Bounds, natural: Callable[[Bounds], Node]) -> Node:
    positive, negative = bounds.not_negative(), bounds.negated().not_negative()
    if positive == negative and not positive.is_empty():
        return Sequence((optional(_MINUS), natural(positive)))
    options: list[Node] = []
    if not positive.is_empty():
        options.append(natural(positive))
    if not negative.is_empty():
        options.append(Sequence((_MINUS, natural(negative))))
    return _choice(options)


def _choice(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Choice(tuple(options))


def _mirrored(numbers: NumberSet) -> Node:
    """`numbers`, which have divisors, by their size: those from zero on, and the negative ones behind a minus."""

    parts = []
    for bounds, excluded in (
        (numbers.bounds.not_negative(), numbers.excluded),
        (numbers.bounds.negated().not_negative(), tuple(value.copy_negate() for value in numbers.excluded)),
    ):
        kept = tuple(sorted({value for value in excluded if value in bounds}))
        parts.append(replace(numbers, bounds=bounds, excluded=kept))
    upper, lower = parts
    if upper == lower:
        return Sequence((optional(_MINUS), divisible(upper)))
    return Choice((divisible(upper), Sequence((_MINUS, divisible(lower)))))


ANY_NUMBER: Node = Sequence((optional(_MINUS), natural_numbers(Bounds(Decimal(0)))))
ANY_INTEGER: Node = Sequence((optional(_MINUS), natural_integers(Bounds(Decimal(0)))))
