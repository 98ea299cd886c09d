"""The bounds within which a grammar compiles and runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .errors import GrammarLimitError


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Bounds on one grammar; whatever exceeds one ends with a `GrammarLimitError` that names it.

    Attributes:
        seconds: wall time of `compile_grammar`.
        source_chars: length of `Grammar.source`: of the pattern, or of the JSON that holds any other kind.
        nesting: groups inside groups of a pattern or of EBNF, formats inside formats of a structural tag.
        rules: rules that the grammar lowers to.
        positions: places in those rules (about one a byte class, literal byte or repetition).
        min_repeat: the largest lower bound of a repetition (`{m,}`, minLength, minItems). Upper bounds are free.
        states: states met while the grammar is used; each takes about half a KiB.
        configurations: alternatives that one state follows at once.
        work: alternatives followed for one mask or byte, which bounds its time (a million take about 0.2 s).
        memory_bytes: what the states and all else that was met while the grammar was used may take.
    """

    seconds: float = 10.0
    source_chars: int = 2_000_000
    nesting: int = 100
    rules: int = 100_000
    positions: int = 1_000_000
    min_repeat: int = 10_000
    states: int = 200_000
    configurations: int = 50_000
    work: int = 1_000_000
    memory_bytes: int = 100 << 20

    def check(self, name: str, value: int, what: str, *, pointer: str = "") -> None:
        """Raise `GrammarLimitError` where `value` is above the limit called `name`; `what` says what was counted."""
        allowed = getattr(self, name)
        if value > allowed:
            raise GrammarLimitError(
                f"{what}: {value} is above the limit of {allowed} (CompileLimits.{name}); simplify, or raise it",
                pointer=pointer,
            )


DEFAULT_LIMITS = CompileLimits()


class Growth:
    """Counts the places of one grammar while it is rewritten, which may make many more of them."""

    def __init__(self, limits: CompileLimits) -> None:
        self._limits = limits
        self._count = 0

    def add(self, count: int) -> None:
        """Count `count` more, before they are made. Raise `GrammarLimitError` once they are above `positions`."""
        self._count += count
        self._limits.check("positions", self._count, "places of the rewritten grammar")


class Deadline:
    """The moment until which one compilation may run."""

    def __init__(self, limits: CompileLimits) -> None:
        self._seconds = limits.seconds
        self._end_s = time.monotonic() + limits.seconds

    def check(self) -> None:
        """Raise `GrammarLimitError` once the time is up."""
        if time.monotonic() > self._end_s:
            raise GrammarLimitError(
                f"compiling took longer than {self._seconds} s (CompileLimits.seconds); simplify, or raise it"
            )
