"""Where a mock's answer ends: before its first stop string or pattern, as a model's would."""

from __future__ import annotations

from collections.abc import Callable

from palmette.constrained.stop_pattern import stop_patterns
from palmette.runtime.sampling_params import SamplingParams


def before_stop(text: str, params: SamplingParams, may_end: Callable[[str], bool]) -> tuple[str, str | None]:
    """The text before the first stop that may end it there, and that stop.

    As for a model that writes one character a token: the stop that is complete first wins, and of those the one that
    begins first.

    Args:
        may_end: whether a constrained answer may be just this text.

    Raises:
        GrammarError: a stop pattern cannot be used.
    """
    if not params.stop and not params.stop_regex:
        return text, None
    patterns = _Patterns(params.stop_regex)
    for end in range(1, len(text) + 1):
        found = [(end - len(stop), end) for stop in params.stop if text.endswith(stop, 0, end)]
        found += patterns.complete_at(text, end)
        if found and may_end(text[: min(found)[0]]):
            start, end = min(found)
            return text[:start], text[start:end]
        patterns.take(text[end - 1])
    return patterns.at_the_end(text, may_end)


class _Patterns:
    """Stop patterns over a text that comes character by character. Without any it costs nothing."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._search = stop_patterns(patterns).search() if patterns else None

    def complete_at(self, text: str, end: int) -> list[tuple[int, int]]:
        """The match that is complete with the character before `end`, as (start, end); the text is not moved on."""
        match = self._search.copy().push(text[end - 1]) if self._search is not None else None
        return [] if match is None else [(match.start, match.end)]

    def take(self, char: str) -> None:
        """Move on by a character that ends nothing."""
        if self._search is not None:
            self._search.push(char, may_match=False)

    def at_the_end(self, text: str, may_end: Callable[[str], bool]) -> tuple[str, str | None]:
        """The whole text, or what stands before a match that needs its end."""
        match = self._search.finish() if self._search is not None else None
        if match is None or not may_end(text[: match.start]):
            return text, None
        return text[: match.start], text[match.start : match.end]
