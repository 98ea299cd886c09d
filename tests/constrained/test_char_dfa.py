"""Automata over characters: set operations, lengths and costs, against direct evaluation."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.constrained.strategies import anchored_patterns, texts

from palmette.constrained.char_dfa import CharDfa, intersection, pattern_dfa, trimmed, words_dfa
from palmette.constrained.char_lengths import LengthGraph
from palmette.constrained.char_symbols import Symbols
from palmette.constrained.code_points import ANY, CodePoints
from palmette.constrained.errors import GrammarLimitError
from palmette.constrained.limits import DEFAULT_LIMITS
from palmette.constrained.regex_parser import parse_regex

_RANGES = st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 300)).map(lambda found: (found[0], sum(found)))
_SETS = st.lists(_RANGES, max_size=4).map(CodePoints.of)
_small_patterns = st.sampled_from(
    ["a*", "(ab)*", "(aa|bbb)*", "a{2,5}b?", "(a|b)*a", "(aaa)*|b{4}", "(a(bb)*)?", "a{3}(b{4})*"]
)


def dfa(pattern: str, *, search: bool = False) -> CharDfa:
    """The automaton of a pattern of Python's re."""
    return pattern_dfa(parse_regex(pattern, "python", DEFAULT_LIMITS), search=search)


@given(st.lists(_SETS, max_size=4), st.integers(0, 0x10FFFF))
def test_symbols_partition_the_characters(sets: list[CodePoints], code: int) -> None:
    """Each character is in exactly one symbol, and each set is the union of its symbols."""
    symbols = Symbols(sets)
    if 0xD800 <= code <= 0xDFFF:
        return
    assert [code in chars for chars in symbols.sets].count(True) == 1
    assert code in symbols.sets[symbols.symbol(chr(code))]
    for chars in (*sets, ANY):
        assert (symbols.symbol(chr(code)) in symbols.of(chars)) == (code in chars)


@given(anchored_patterns, anchored_patterns, st.lists(texts, min_size=1, max_size=4))
def test_operations(first: str, second: str, candidates: list[str]) -> None:
    """Intersection and complement are those of the sets of texts; trimming and minimising change nothing."""
    one, other = dfa(first), dfa(second, search=True)
    both, less = intersection([one, other]), intersection([one, other.complement()])
    for text in candidates:
        in_one, in_other = re.fullmatch(first, text) is not None, re.search(second, text) is not None
        assert one.accepts(text) == in_one
        assert both.accepts(text) == (in_one and in_other)
        assert less.accepts(text) == (in_one and not in_other)
    assert bool(trimmed(both).edges) == any(both.accepting)


@given(st.sets(texts, max_size=6), texts)
def test_words(words: set[str], other: str) -> None:
    """An automaton of words accepts these and lists them."""
    automaton = words_dfa(sorted(words))
    assert all(automaton.accepts(word) for word in words)
    assert automaton.accepts(other) == (other in words)
    graph = LengthGraph(trimmed(automaton), 0, None) if words else None
    if graph is not None:
        assert graph.words(6) == sorted(words)
        assert graph.words(len(words) - 1) is None


@given(_small_patterns, st.integers(0, 9), st.none() | st.integers(0, 9), st.sampled_from([(1, 1), (1, 3), (2, 5)]))
def test_lengths_and_costs(pattern: str, low: int, more: int | None, costs: tuple[int, int]) -> None:
    """Emptiness, dead ends and least costs of texts within bounds are those of all texts written down."""
    high = None if more is None else low + more
    last = low + 12 if high is None else high
    graph = LengthGraph(trimmed(dfa(pattern)), low, high)
    cost = [float(costs["b" in _members(chars)]) for chars in graph.bodies]
    alive: dict[Hashable, float] = {}
    for length in range(low, min(last, 14) + 1):
        for text in map("".join, itertools.product("ab", repeat=length)) if length < 11 else _some(length):
            if re.fullmatch(pattern, text):
                _follow(graph, text, cost, alive)
    if last <= 10:
        assert graph.is_empty() == (not alive)
        for state, least in alive.items():
            assert graph.cost(state, cost) == least


def _members(chars: CodePoints) -> str:
    return "".join(char for char in "ab" if ord(char) in chars)


def _some(length: int) -> list[str]:
    return ["a" * length, "b" * length, "ab" * (length // 2)]


def _follow(graph: LengthGraph, text: str, cost: list[float], alive: dict[Hashable, float]) -> None:
    """Follow a text, which must never meet a dead end, and note what its rest costs in each state."""
    states: list[Hashable] = [(0, 0)]
    spent = [0.0]
    for char in text:
        body, state = next((b, s) for b, s in graph.edges(states[-1]) if ord(char) in graph.bodies[b])
        states.append(state)
        spent.append(spent[-1] + cost[body])
    assert graph.ends(states[-1])
    for state, before in zip(states, spent, strict=True):
        alive[state] = min(alive.get(state, math.inf), spent[-1] - before)


@given(_small_patterns, st.integers(0, 40), st.none() | st.integers(0, 60), st.integers(1, 5), st.data())
def test_near_states_allow_the_same(
    pattern: str, low: int, more: int | None, horizon: int, data: st.DataObject
) -> None:
    """Within the horizon a state that stands for another has the same edges and ends."""
    graph = LengthGraph(trimmed(dfa(pattern)), low, None if more is None else low + more)
    if graph.is_empty():
        return
    state: Hashable = (0, 0)
    for _ in range(data.draw(st.integers(0, 60))):
        choices = list(graph.edges(state))
        if not choices:
            break
        state = data.draw(st.sampled_from(choices))[1]
    pair = state, graph.near(state, horizon)
    for _ in range(horizon):
        one, other = (dict(graph.edges(each)) for each in pair)
        assert one.keys() == other.keys()
        assert graph.ends(pair[0]) == graph.ends(pair[1])
        if not one:
            break
        body = data.draw(st.sampled_from(sorted(one)))
        pair = one[body], other[body]


def test_near_states_are_few() -> None:
    """A bound of 100,000 characters is met in few states that differ as far as a token sees."""
    for low, high in ((0, 100_000), (100_000, None), (50_000, 100_000)):
        graph = LengthGraph(trimmed(dfa("([a-z]+ )*[a-z]+")), low, high)
        near = {graph.near((state, count), 20) for count in range(0, 100_001, 7) for state in (0, 1)}
        assert len(near) < 200


def test_costs_of_long_texts() -> None:
    """Least costs with bounds of 100,000 take no time, whether all bodies cost alike or not."""
    graph = LengthGraph(trimmed(dfa("(?:[a-z]é)*")), 100_000, None)
    assert graph.cost((0, 0), [1.0, 1.0]) == 100_000
    assert graph.cost((0, 0), [1.0, 2.0]) == 150_000
    assert graph.cost((0, 0), [1.0, math.inf]) == math.inf
    assert graph.cost((0, 100_000), [1.0, math.inf]) == 0


def test_limits() -> None:
    """What would take exponentially many states, or too many copies, ends with an error."""
    for pattern in ("(a|b)*a(a|b){20}", "(?:a{1000}b){1000}", "(?:[a-z]{1,5000}x)*y"):
        with pytest.raises(GrammarLimitError):
            dfa(pattern)
