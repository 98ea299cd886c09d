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
    """The start or the end of the text; `offset` is where it stands in the pattern.

    A `soft` end stands also before a newline that is the last character, as Python's ``$`` does.
    """

    side: Literal["start", "end"]
    offset: int
    soft: bool = False


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place between a character of `word` and one that is not, or an end of the text; `negated`, any other place.

    `sees_nothing`: whether the negated one stands in the empty text; Python's does not before 3.14.
    """

    word: CodePoints
    negated: bool
    offset: int
    sees_nothing: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """A place where `item` matches what follows (`ahead`) or what came before; `negated`, where it does not."""

    item: Pattern
    ahead: bool
    negated: bool
    offset: int

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return f"{'negative ' if self.negated else ''}{'lookahead' if self.ahead else 'lookbehind'}"


Pattern = Chars | Concat | Alternation | Repetition | Anchor | Boundary | Look


def inside(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns directly inside `pattern`."""
    match pattern:
        case Concat(items):
            return items
        case Alternation(branches):
            return branches
        case Repetition(item, _, _) | Look(item, _, _, _):
            return (item,)
        case _:
            return ()


def parts(pattern: Pattern) -> list[Pattern]:
    """Every distinct node object of `pattern`, those that hold others first."""
    order = [pattern]
    for part in order:  # grows while it is walked
        order.extend(inside(part))
    return list({id(part): part for part in order}.values())


def find_context(pattern: Pattern) -> Anchor | Boundary | Look | None:
    """Some part of `pattern` that looks at the text around a place instead of taking characters."""
    todo = [pattern]
    while todo:
        part = todo.pop()
        if isinstance(part, Anchor | Boundary | Look):
            return part
        todo.extend(reversed(inside(part)))
    return None


def length_range(pattern: Pattern) -> tuple[int, int | None]:
    """Bounds on how many characters `pattern` matches; None is unbounded. Recursion is bounded by the parser.

    They are the fewest and the most where nothing in it looks at the text around a place.
    """
    match pattern:
        case Chars():
            return 1, 1
        case Anchor() | Boundary() | Look():
            return 0, 0
        case Concat(items):
            ranges = [length_range(item) for item in items]
            highs = [high for _, high in ranges]
            return sum(low for low, _ in ranges), _total(highs)
        case Alternation(branches):
            ranges = [length_range(branch) for branch in branches] or [(0, 0)]
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
