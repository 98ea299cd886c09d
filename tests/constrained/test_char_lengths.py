"""Automata over characters with bounds on their length."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from palmette.constrained.char_dfa import pattern_dfa, trimmed
from palmette.constrained.char_lengths import LengthGraph
from palmette.constrained.limits import DEFAULT_LIMITS
from palmette.constrained.regex_parser import parse_regex
from palmette.constrained.slices import LANE_CHARACTERS, MOST_COVERED

PATTERNS = [
    r"(?:\S+\s+){0,19}\S+",
    "[a-z]*",
    "[a-z ]+x",
    ".*ab",
    "([a-z]{3}-)*[a-z]{3}",
    r"[^0-9]*",
    "(aa)*",
    r"\w{2,}",
]


def _graph(pattern: str, low: int, high: int | None) -> LengthGraph:
    return LengthGraph(trimmed(pattern_dfa(parse_regex(pattern, "python", DEFAULT_LIMITS), search=False)), low, high)


def _after(graph: LengthGraph, state: Hashable, char: str) -> Hashable | None:
    """The state after `char`, or None."""
    for body, target in graph.edges(state):
        if ord(char) in graph.bodies[body]:
            return target
    return None


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("low", "high"), [(0, None), (3, None), (0, 30), (5, 24), (2, 200)])
def test_what_is_covered_may_come(pattern: str, low: int, high: int | None) -> None:
    """Any text of a covered set, as long as the cover says, leads on from every state that a walk reaches."""
    graph = _graph(pattern, low, high)
    draw = random.Random(pattern)
    state: Hashable = (0, 0)
    for _ in range(60):
        for lane, characters in zip(LANE_CHARACTERS, graph.cover(state), strict=False):
            texts = [chr(draw.choice(draw.choice(lane.ranges))) for _ in range(min(characters, 40))]
            here: Hashable | None = state
            for char in texts:
                assert here is not None
                here = _after(graph, here, char)
            assert here is not None, (state, texts)
        edges = list(graph.edges(state))
        if not edges:
            break
        state = draw.choice(edges)[1]


def test_covers_are_found_where_they_matter() -> None:
    """Words with spaces between, and a string with a bound, cover text up to near their bounds."""
    words = _graph(PATTERNS[0], 1, 200)
    inside = _after(words, (0, 0), "a")
    assert inside is not None
    assert words.cover(inside)[0] >= 16
    free = _graph("[^\\n]*", 0, 50)
    assert free.cover((0, 20))[1] == 30
    assert _graph("[a-z]*", 0, None).cover((0, 0))[3] == MOST_COVERED
