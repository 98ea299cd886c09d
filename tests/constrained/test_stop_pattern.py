"""The first match of stop patterns, against Python's re."""

from __future__ import annotations

import random
import re
import threading
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.constrained.strategies import patterns, texts

from palmette.constrained import (
    CompileLimits,
    GrammarError,
    GrammarLimitError,
    Match,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
    stop_pattern,
    stop_patterns,
)


def oracle(sources: list[str], text: str, first_end: int = 1) -> Match | None:
    """The match that is complete first, by trying every end and every beginning with re."""
    for end in range(first_end, len(text) + 1):
        for start in range(end):
            for source in sources:
                if re.fullmatch(source, text[start:end]):
                    return Match(start, end, source)
    return None


def pieces(text: str, cuts: list[int]) -> list[str]:
    """`text` in pieces."""
    places = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    return [text[low:high] for low, high in pairwise(places)]


def is_empty(source: str) -> bool:
    """Whether a pattern matches the empty string."""
    return re.fullmatch(source, "") is not None


@settings(max_examples=150)
@given(st.lists(patterns, min_size=1, max_size=3), texts, st.lists(st.integers(0, 8), max_size=4))
def test_equals_brute_force(sources: list[str], text: str, cuts: list[int]) -> None:
    """The match equals that of re over all places, however the text is cut, and nothing before it was unsafe."""
    assume(not any(is_empty(source) for source in sources))
    search = stop_patterns(tuple(sources)).search()
    expected = oracle(sources, text)
    shown = 0
    for piece in pieces(text, cuts):
        search.push(piece)
        assert search.safe >= shown
        shown = search.safe
    assert search.finish() == expected == search.match
    assert shown <= search.safe == (len(text) if expected is None else expected.start)


@settings(max_examples=100)
@given(patterns, texts, texts)
def test_held_text_may_still_match(source: str, before: str, after: str) -> None:
    """Text that is shown is never part of a later match, and text is held only where a match of the pattern begins."""
    assume(not is_empty(source) and oracle([source], before) is None)
    search = stop_patterns((source,)).search()
    search.push(before)
    safe = search.safe
    match = search.push(after)
    assert match == oracle([source], before + after)
    assert match is None or match.start >= safe


def test_holds_exactly_what_may_become_a_match() -> None:
    """From the earliest place where a match could still begin text is held; once it cannot, it is shown."""
    search = stop_patterns((r"\n\n+END", "zz")).search()
    assert (search.push("a\n"), search.safe) == (None, 1)
    assert (search.push("\n\nEN"), search.safe) == (None, 1)
    assert (search.push("z"), search.safe) == (None, 6)
    assert search.push("zzz") == Match(6, 8, "zz")
    assert (search.safe, search.chars) == (6, 8)


def test_a_match_is_final() -> None:
    """After a match nothing more is taken."""
    search = stop_patterns(("ab",)).search()
    assert search.push("xab") == Match(1, 3, "ab")
    assert search.push("ab") == search.finish() == Match(1, 3, "ab")
    assert (search.chars, search.safe) == (3, 1)


def test_ties() -> None:
    """Of matches that are complete together the earliest beginning wins, then the first pattern in the list."""
    assert stop_patterns(("bc", "abc", "[a]bc")).search().push("abc") == Match(0, 3, "abc")


def test_anchors() -> None:
    """^ is the beginning of the whole text and $ its end, which only finish() tells; neither is a line's."""
    search = stop_patterns(("^ab", "c$", r"d\Z")).search()
    assert search.push("xab\nab\nc\nc") is None
    assert (search.safe, search.chars) == (9, 10)
    assert search.finish() == Match(9, 10, "c$")
    assert stop_patterns(("^ab",)).search().push("ab") == Match(0, 2, "^ab")
    other = stop_patterns(("c$",)).search()
    other.push("c\n")
    assert other.finish() is None
    assert other.safe == 2


def test_text_that_may_not_end_yet() -> None:
    """Matches that are complete while the text may not end are text; a later end of the same beginning counts."""
    search = stop_patterns((r"\d+",)).search()
    assert search.push("a12", may_match=False) is None
    assert search.safe == 1
    assert search.push("3") == Match(1, 4, r"\d+")


def test_characters_of_several_bytes() -> None:
    """Places are counted in characters, and a match never begins or ends inside one."""
    assert stop_patterns(("[é-ü]🙂",)).search().push("日é🙂") == Match(1, 3, "[é-ü]🙂")


@pytest.mark.parametrize("source", ["a*", "(a|)", "^", "$", "a{0}", "", "(?:)", "^b?$"])
def test_patterns_that_match_nothing_at_all_are_refused(source: str) -> None:
    """A pattern that matches the empty string would end every text at once."""
    with pytest.raises(GrammarError, match="matches the empty string"):
        stop_patterns((source,))


def test_bad_patterns() -> None:
    """What is no pattern, not supported, or never matches is refused, with the pattern in the message."""
    with pytest.raises(GrammarError, match="bad regular expression"):
        stop_patterns(("ok", "(a"))
    with pytest.raises(UnsupportedGrammarError, match="backreference"):
        stop_patterns((r"(a)\1",))
    with pytest.raises(UnsupportedGrammarError, match="anchor"):
        stop_patterns(("a(^b)+",))
    with pytest.raises(UnsatisfiableGrammarError):
        stop_patterns((r"[^\s\S]",))


def test_work_is_bounded_by_states_and_not_by_text() -> None:
    """A hundred thousand places that may begin a match are one place; no character is scanned again."""
    patterns_ = stop_patterns((r"a[^z]*z!",))
    search = patterns_.search()
    for _ in range(1000):
        search.push("a" * 100)
    assert search.safe == 0
    assert sum(len(places) for places in search._places) <= 2
    assert len(search._automata[0]) < 10
    assert search.push("z!") == Match(0, 100_002, r"a[^z]*z!")


def test_too_many_places() -> None:
    """A pattern that would be followed from thousands of places at once ends with an error and not with slowness."""
    search = stop_patterns(("a{1,4000}b",)).search()
    with pytest.raises(GrammarLimitError, match=r"a\{1,4000\}b"):
        search.push("a" * 5000)


def test_states_that_others_met_are_not_held_against_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that met its limit in the text of one search still serves the next one."""
    monkeypatch.setattr(stop_pattern, "_LIMITS", CompileLimits(states=200))
    shared = stop_pattern.StopPatterns(["x[^z]*[a-m][^z]{16}z"])
    text = "x" + "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwy", k=300))
    with pytest.raises(GrammarLimitError):
        shared.search().push(text)
    assert shared.search().push("xa0123456789abcdefz") is not None


def test_compiled_once_and_shared_between_threads() -> None:
    """Equal patterns are one object, and searches of several threads agree."""
    shared = stop_patterns((r"[a-z]{3}\d", "x{2,5}y"))
    assert stop_patterns((r"[a-z]{3}\d", "x{2,5}y")) is shared
    text = "abc def xxxy"
    found: list[Match | None] = []

    def work() -> None:
        for _ in range(20):
            search = shared.search()
            for char in text:
                search.push(char)
            found.append(search.match)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Match(8, 12, "x{2,5}y")] * 80
