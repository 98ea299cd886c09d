"""When the pieces of a mock's answers come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from palmette.runtime.program import Completion, Delta

from .mock_script import MockCall, ScriptError

LatencyOf = float | Callable[[MockCall], float]
"""Seconds, or a function that says for each call how many."""


class Latency:
    """Time before an answer begins, and for each of its tokens.

    Raises:
        TypeError, ValueError: a time is no number of seconds of at least 0.
    """

    def __init__(self, latency_s: LatencyOf, token_latency_s: float) -> None:
        self._first_s = latency_s if callable(latency_s) else _checked("latency_s", latency_s)
        self._token_s = _checked("token_latency_s", token_latency_s)

    def first_s(self, call: MockCall) -> float:
        """Time before the answer begins.

        Raises:
            ScriptError: the function for it failed, or gave no time.
        """
        if not callable(self._first_s):
            return self._first_s
        try:
            return _checked("what the latency_s function returns", self._first_s(call))
        except BaseException as error:  # the user's function may raise anything; it belongs to this node
            raise ScriptError(type(error).__name__, str(error)) from error

    def end_s(self, first_s: float, tokens: int) -> float:
        """Time from the question to the end of an answer of so many tokens."""
        return first_s + self._token_s * tokens

    def deltas(
        self, node_id: int, completions: Sequence[Completion], first_s: float, length: int
    ) -> Iterator[tuple[float, Delta]]:
        """Pieces of `length` characters of several answers, which are written side by side, and the time of each."""
        timed: list[tuple[float, Delta]] = []
        for index, completion in enumerate(completions):
            text = completion.text
            for at in range(0, len(text), length):
                written = min(at + length, len(text)) / len(text)
                when_s = first_s + self._token_s * completion.completion_tokens * written
                timed.append((when_s, Delta(node_id, text[at : at + length], index)))
        return iter(sorted(timed, key=lambda entry: entry[0]))  # stable: at one time, answer by answer


def _checked(name: str, seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {seconds!r}")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} must be at least 0 seconds and finite, not {seconds!r}")
    return float(seconds)
