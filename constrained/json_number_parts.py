"""What the digits of a number, read from left to right, say of one thing: small automata that a product is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction


def decimal_places(value: Decimal) -> int:
    """Digits after the point."""
    exponent = value.normalize().as_tuple().exponent
    return max(-int(exponent), 0)


class Part(ABC):
    """What the digits of a number say of one thing."""

    @abstractmethod
    def start(self) -> Hashable:
        """Before any digit."""

    @abstractmethod
    def digit(self, state: Hashable, digit: int) -> Hashable:
        """After one more digit."""

    @abstractmethod
    def point(self, state: Hashable) -> Hashable:
        """After the point."""

    @abstractmethod
    def result(self, state: Hashable) -> int:
        """What is known where the number ends here."""

    @abstractmethod
    def is_settled(self, state: Hashable) -> bool:
        """Whether `result` stays the same whatever comes."""


class Comparison(Part):
    """How a number compares with `value`, which is not negative: result -1, 0 or 1.

    States: -1 and 1 where settled; (digits read, comparison so far) before the point; digits compared after it.
    """

    def __init__(self, value: Decimal) -> None:
        self._whole, _, fraction = format(value.copy_abs(), "f").partition(".")
        self._fraction = fraction.rstrip("0")

    def start(self) -> Hashable:
        return 0, 0

    def digit(self, state: Hashable, digit: int) -> Hashable:
        if self.is_settled(state):
            return state
        if isinstance(state, tuple):
            return self._whole_digit(state[0], state[1], digit)
        assert isinstance(state, _Place)
        expected = int(self._fraction[state.index]) if state.index < len(self._fraction) else 0
        if digit == expected:
            return _Place(min(state.index + 1, len(self._fraction)))
        return -1 if digit < expected else 1

    def _whole_digit(self, count: int, sign: int, digit: int) -> Hashable:
        if count == len(self._whole):
            return 1
        expected = int(self._whole[count])
        return count + 1, sign or (digit > expected) - (digit < expected)

    def point(self, state: Hashable) -> Hashable:
        if isinstance(state, tuple):
            count, sign = state
            return -1 if count < len(self._whole) else sign or _Place(0)
        return state

    def result(self, state: Hashable) -> int:
        at_end = self.point(state)
        if isinstance(at_end, _Place):
            return -1 if at_end.index < len(self._fraction) else 0
        assert isinstance(at_end, int)
        return at_end

    def is_settled(self, state: Hashable) -> bool:
        return isinstance(state, int)


@dataclass(frozen=True, slots=True)
class _Place:
    """So many digits after the point, all equal to those of the value."""

    index: int


class Division(Part):
    """Whether a number is a multiple of `divisor`: result 1 if so, else 0.

    States: None where it can no longer be one; else (places after the point, or -1 before it; a remainder). Of
    remainders that no further digits tell apart only the first one met is a state: a divisor of 1000 has four.
    """

    def __init__(self, divisor: Decimal) -> None:
        exact = Fraction(divisor)
        self._places = decimal_places(divisor)
        self._modulus = int(exact * 10**self._places)
        self._met: dict[Hashable, int] = {}
        self._known: dict[tuple[int, int], Hashable] = {}

    def start(self) -> Hashable:
        return -1, 0

    def digit(self, state: Hashable, digit: int) -> Hashable:
        if state is None:
            return None
        assert isinstance(state, tuple)
        place, remainder = state
        if place == self._places:
            return state if digit == 0 else None
        return self._state(place if place < 0 else place + 1, (remainder * 10 + digit) % self._modulus)

    def point(self, state: Hashable) -> Hashable:
        if state is None:
            return None
        assert isinstance(state, tuple)
        return self._state(0, state[1])

    def result(self, state: Hashable) -> int:
        if state is None:
            return 0
        assert isinstance(state, tuple)
        place, remainder = state
        return int(remainder * 10 ** (self._places - max(place, 0)) % self._modulus == 0)

    def is_settled(self, state: Hashable) -> bool:
        return state is None

    def _state(self, place: int, remainder: int) -> Hashable:
        known = self._known.get((place, remainder), self)
        if known is self:
            known = self._known[place, remainder] = self._canonical(place, remainder)
        return known

    def _canonical(self, place: int, remainder: int) -> Hashable:
        """The state of a remainder. What `missing` digits may still make of it is all that can tell it from others."""
        missing = self._places - max(place, 0)
        targets = [self._target(remainder, missing)]
        while place < 0 and 10**missing < self._modulus:
            missing += 1
            targets.append(self._target(remainder, missing))
        if place >= 0 and targets[0] is None:
            return None
        return place, self._met.setdefault((place, tuple(targets)), remainder)

    def _target(self, remainder: int, digits: int) -> int | None:
        """What the next `digits` digits must read to give a multiple; None if none do; the least of them."""
        target = -remainder * 10**digits % self._modulus
        return target if target < 10**digits else None
