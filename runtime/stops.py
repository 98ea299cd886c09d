"""Stop patterns, compiled once in each process that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palmette.constrained.errors import PalmetteError

from .errors import EngineError

if TYPE_CHECKING:
    from palmette.constrained.stop_pattern import StopPatterns

_MOST = 256
_compiled: dict[tuple[str, ...], StopPatterns | PalmetteError] = {}


def compiled_stops(patterns: tuple[str, ...]) -> StopPatterns | PalmetteError:
    """Compiled stop patterns, or why they cannot be used; either is kept.

    Compiling takes a while, so whoever must not be held up has it done by another thread first.
    """
    known = _compiled.get(patterns)
    if known is None:
        from palmette.constrained.stop_pattern import stop_patterns

        try:
            known = stop_patterns(patterns)
        except PalmetteError as error:
            known = error
        except Exception as error:  # a defect, or no memory: whoever waits for the patterns must be told
            known = EngineError(f"the stop patterns could not be compiled: {type(error).__name__}: {error}")
        if len(_compiled) >= _MOST:
            _compiled.pop(next(iter(_compiled)), None)
        _compiled[patterns] = known
    return known


def is_compiled(patterns: tuple[str, ...]) -> bool:
    """Whether `compiled_stops` answers at once; no patterns at all need no compiling."""
    return not patterns or patterns in _compiled


def check_stops(patterns: tuple[str, ...]) -> None:
    """Raise the error of stop patterns that cannot be used."""
    usable_stops(patterns)


def usable_stops(patterns: tuple[str, ...]) -> StopPatterns | None:
    """Compiled stop patterns, None for none; raises the error of those that cannot be used."""
    found = compiled_stops(patterns) if patterns else None
    if isinstance(found, PalmetteError):
        raise found.with_traceback(None)  # it is kept, and would keep every frame it was ever raised through
    return found
