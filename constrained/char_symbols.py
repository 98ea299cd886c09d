"""The characters that a set of character sets tells apart: symbols that stand for all code points alike to them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

from .code_points import ANY, CodePoints, Range

_REPLACEMENT = 0xFFFD  # stands for surrogates, which are in no set


class Symbols:
    """A partition of all characters.

    Attributes:
        sets: the characters of each symbol.
    """

    def __init__(self, told_apart: Iterable[CodePoints]) -> None:
        """The coarsest partition of which every set of `told_apart` is a union."""
        distinct = tuple(dict.fromkeys(told_apart))
        toggles: dict[int, int] = {}
        for index, chars in enumerate((ANY, *distinct)):
            for low, high in chars.ranges:
                toggles[low] = toggles.get(low, 0) ^ 1 << index
                toggles[high + 1] = toggles.get(high + 1, 0) ^ 1 << index
        ranges, self._starts, self._symbols = _sweep(toggles)
        self.sets = tuple(CodePoints(tuple(found)) for found in ranges.values())
        self._members = {
            chars: tuple(symbol for symbol, mask in enumerate(ranges) if mask >> index & 1)
            for index, chars in enumerate((ANY, *distinct))
        }

    def __len__(self) -> int:
        return len(self.sets)

    def of(self, chars: CodePoints) -> tuple[int, ...]:
        """The symbols that make up one of the sets that are told apart."""
        return self._members[chars]

    def symbol(self, char: str) -> int:
        """The symbol of a character."""
        code = ord(char)
        return self._symbols[bisect_right(self._starts, _REPLACEMENT if 0xD800 <= code <= 0xDFFF else code) - 1]


def _sweep(toggles: dict[int, int]) -> tuple[dict[int, list[Range]], list[int], list[int]]:
    """Ranges by the mask of the sets that hold them; where each stretch begins, and its symbol (-1 for surrogates)."""
    ranges: dict[int, list[Range]] = {}
    starts: list[int] = []
    symbols: list[int] = []
    order: dict[int, int] = {}
    mask = 0
    points = sorted(toggles)
    for point, following in zip(points, [*points[1:], points[-1]], strict=True):
        mask ^= toggles[point]
        starts.append(point)
        if mask & 1:
            ranges.setdefault(mask, []).append((point, following - 1))
            symbols.append(order.setdefault(mask, len(order)))
        else:
            symbols.append(-1)
    return ranges, starts, symbols


@lru_cache(maxsize=1024)
def union(sets: frozenset[CodePoints]) -> CodePoints:
    """All characters of `sets`."""
    return CodePoints.of(each for chars in sets for each in chars.ranges)
