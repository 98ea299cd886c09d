"""What a regular expression says, before it is lowered to rules over bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .code_points import CodePoints


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CodePoints


@dataclass(frozen=True, slots=True)
class Concat:
    """All items, one after the other; no items match the empty string."""

    items: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """Any one of the branches."""

    branches: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """`low` to `high` times `item`; `high` None is unbounded."""

    item: Pattern
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start or the end of the text; `offset` is where it stands in the pattern."""

    side: Literal["start", "end"]
    offset: int


Pattern = Chars | Concat | Alternation | Repetition | Anchor


def inside(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns directly inside `pattern`."""
    match pattern:
        case Concat(items):
            return items
        case Alternation(branches):
            return branches
        case Repetition(item, _, _):
            return (item,)
        case _:
            return ()


def find_anchor(pattern: Pattern) -> Anchor | None:
    """Some anchor anywhere in `pattern`."""
    todo = [pattern]
    while todo:
        part = todo.pop()
        if isinstance(part, Anchor):
            return part
        todo.extend(inside(part))
    return None


def length_range(pattern: Pattern) -> tuple[int, int | None]:
    """Fewest and most characters that `pattern` matches; None is unbounded. Recursion is bounded by the parser."""
    match pattern:
        case Chars():
            return 1, 1
        case Anchor():
            return 0, 0
        case Concat(items):
            ranges = [length_range(item) for item in items]
            highs = [high for _, high in ranges]
            return sum(low for low, _ in ranges), _total(highs)
        case Alternation(branches):
            ranges = [length_range(branch) for branch in branches]
            most = [high for _, high in ranges]
            return min(low for low, _ in ranges), None if None in most else max(
                high for high in most if high is not None
            )
        case Repetition(item, low, high):
            least, most_item = length_range(item)
            if most_item == 0 or high == 0:
                return 0, 0
            return low * least, None if most_item is None or high is None else high * most_item


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
