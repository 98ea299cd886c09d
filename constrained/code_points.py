"""Sets of Unicode code points, and the byte rules that spell them in UTF-8."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from .rules import ByteClass, Choice, Node, Sequence, byte_range, byte_set

LAST = 0x10FFFF
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CodePoints:
    """A set of code points as sorted, disjoint, non-touching ranges, both ends included.

    Surrogates (U+D800 to U+DFFF) are no characters: `of` leaves them out, so no set ever holds one.
    """

    ranges: tuple[Range, ...]

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> CodePoints:
        """The union of `ranges`, which may overlap and come in any order."""
        return cls(merge_ranges(_without_surrogates(ranges)))

    @classmethod
    def single(cls, char: int) -> CodePoints:
        """Only `char`."""
        return cls.of([(char, char)])

    @classmethod
    def from_text(cls, text: str) -> CodePoints:
        """The characters of `text`."""
        return cls.of((ord(char), ord(char)) for char in text)

    def __or__(self, other: CodePoints) -> CodePoints:
        return CodePoints.of(self.ranges + other.ranges)

    def __invert__(self) -> CodePoints:
        gaps = []
        start = 0
        for low, high in self.ranges:
            gaps.append((start, low - 1))
            start = high + 1
        gaps.append((start, LAST))
        return CodePoints.of((low, high) for low, high in gaps if low <= high)

    def __and__(self, other: CodePoints) -> CodePoints:
        return ~(~self | ~other)

    def __sub__(self, other: CodePoints) -> CodePoints:
        return self & ~other

    def __contains__(self, char: int) -> bool:
        return any(low <= char <= high for low, high in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)


def _without_surrogates(ranges: Iterable[Range]) -> Iterable[Range]:
    for low, high in ranges:
        if low < 0xD800:
            yield low, min(high, 0xD7FF)
        if high > 0xDFFF:
            yield max(low, 0xE000), high


def merge_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """`ranges` in any order, sorted and joined where they overlap or touch."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


ANY = CodePoints.of([(0, LAST)])


def within(ranges: Iterable[Range], low: int, high: int) -> tuple[Range, ...]:
    """The part of `ranges` in `low` to `high`, counted from `low`."""
    return tuple((max(a, low) - low, min(b, high) - low) for a, b in ranges if a <= high and b >= low)


def by_leading_digit(ranges: Iterable[Range], block: int) -> dict[tuple[Range, ...], list[int]]:
    """Numbers split as leading digit and rest below `block`: for each set of rests, the digits that have it.

    The ranges must not overlap.
    """
    rests: dict[int, list[Range]] = {}
    whole: list[int] = []
    for low, high in ranges:
        first, last = low // block, high // block
        whole.extend(range(first + 1, last))
        for digit in {first, last}:
            base = digit * block
            rests.setdefault(digit, []).append((max(low, base) - base, min(high, base + block - 1) - base))
    groups: dict[tuple[Range, ...], list[int]] = {((0, block - 1),): whole} if whole else {}
    for digit, rest in rests.items():
        groups.setdefault(merge_ranges(rest), []).append(digit)
    return groups


# (first code point, last, mark bits of the lead byte, number of continuation bytes)
_UTF8_FORMS = ((0x0, 0x7F, 0x00, 0), (0x80, 0x7FF, 0xC0, 1), (0x800, 0xFFFF, 0xE0, 2), (0x10000, LAST, 0xF0, 3))


@lru_cache(maxsize=4096)
def utf8(chars: CodePoints) -> Node:
    """One character of `chars` in UTF-8, as few alternatives as its bytes allow. Source: RFC 3629, section 4."""
    options: list[Node] = []
    for first, last, mark, tail_bytes in _UTF8_FORMS:
        ranges = tuple((low + first, high + first) for low, high in within(chars.ranges, first, last))
        if ranges:
            options.extend(_lead_options(ranges, mark, tail_bytes))
    return options[0] if len(options) == 1 else Choice(tuple(options))


def _lead_options(ranges: tuple[Range, ...], mark: int, tail_bytes: int) -> list[Node]:
    if not tail_bytes:
        return [_byte_ranges(ranges)]
    groups = by_leading_digit(ranges, 64**tail_bytes)
    return [
        Sequence((byte_set(mark | digit for digit in digits), _continuation(rest, tail_bytes)))
        for rest, digits in groups.items()
    ]


@lru_cache(maxsize=4096)
def _continuation(ranges: tuple[Range, ...], count: int) -> Node:
    """`count` continuation bytes whose 6-bit digits spell a number in `ranges`. `count` is at most 3."""
    if count == 1:
        return _byte_ranges(tuple((0x80 + low, 0x80 + high) for low, high in ranges))
    options = tuple(
        Sequence((byte_set(0x80 | digit for digit in digits), _continuation(rest, count - 1)))
        for rest, digits in by_leading_digit(ranges, 64 ** (count - 1)).items()
    )
    return options[0] if len(options) == 1 else Choice(options)


def _byte_ranges(ranges: tuple[Range, ...]) -> ByteClass:
    mask = 0
    for low, high in ranges:
        mask |= byte_range(low, high).mask
    return ByteClass(mask)
