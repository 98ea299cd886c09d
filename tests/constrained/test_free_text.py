"""Free text up to one of some strings, against a search in the text itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.constrained import CompileLimits, GrammarLimitError
from palmette.constrained.automaton import DEAD, LazyAutomaton
from palmette.constrained.free_text import free_text
from palmette.constrained.limits import Deadline
from palmette.constrained.program import build_program
from palmette.constrained.rules import ALL_BYTES, EMPTY, Literal, Node, Rules, Sequence
from palmette.constrained.simplify import simplify

LIMITS = CompileLimits()
strings = st.text("abé", min_size=1, max_size=4)


def accepted(rules: dict[str, Node], text: bytes) -> bool:
    """Whether the rule ``text`` matches."""
    simple = simplify(Rules("text", rules), ALL_BYTES)
    simple.verify()
    automaton = LazyAutomaton(build_program(simple, LIMITS, Deadline(LIMITS)), LIMITS, range(256))
    state = automaton.start
    for byte in text:
        state = automaton.step(state, byte)
        if state == DEAD:
            return False
    return automaton.is_accepting(state)


def first_end(text: str, strings: list[str]) -> int | None:
    """Where the first of `strings` is complete."""
    return next((end for end in range(1, len(text) + 1) if any(text[:end].endswith(each) for each in strings)), None)


@settings(max_examples=150)
@given(st.lists(strings, min_size=1, max_size=3, unique=True), st.text("aabbécx", max_size=9))
def test_text_without_strings(forbidden: list[str], text: str) -> None:
    """Exactly the texts that hold none of the strings match, whatever false starts they have."""
    rules: dict[str, Node] = {}
    free_text(rules, "text", then={}, forbidden=forbidden, may_end=True, limits=LIMITS)
    assert accepted(rules, text.encode()) == (not any(each in text for each in forbidden))


@settings(max_examples=150)
@given(strings, strings, st.text("aabbé", max_size=8), st.booleans())
def test_what_follows_the_first_string(one: str, two: str, text: str, may_end: bool) -> None:
    """When the first string is complete, what belongs to it must follow at once; two that end together both may."""
    rules: dict[str, Node] = {}
    then: dict[str, Node] = {one: Literal(b"1"), two: Sequence((Literal(b"2"),))}
    free_text(rules, "text", then=then, may_end=may_end, limits=LIMITS)
    end = first_end(text, [one, two])
    assert accepted(rules, text.encode()) == (may_end and end is None)
    if end is not None:
        here = text[:end]
        assert accepted(rules, here.encode() + b"2") == here.endswith(two)
        assert accepted(rules, here.encode() + b"1") == (one != two and here.endswith(one))


def test_forbidden_strings_go_first() -> None:
    """A string that is forbidden never appears, even where one that may end the text is complete with it."""
    rules: dict[str, Node] = {}
    free_text(rules, "text", then={">": EMPTY}, forbidden=["x>"], may_end=False, limits=LIMITS)
    assert accepted(rules, b"y>")
    assert not accepted(rules, b"x>")


def test_strings_that_go_on_from_each_other() -> None:
    """Long strings that begin again inside themselves are followed in time that grows as they do."""
    rules: dict[str, Node] = {}
    free_text(rules, "text", then={}, forbidden=["ab" * 5_000 + "c"], may_end=True, limits=LIMITS)
    assert len(rules) == 10_001


def test_the_ways_between_strings_are_bounded() -> None:
    """Many strings that begin with different characters meet a limit before they fill the memory."""
    forbidden = [chr(0x4E00 + index) * 20 for index in range(3_000)]
    with pytest.raises(GrammarLimitError, match="positions"):
        free_text({}, "text", then={}, forbidden=forbidden, may_end=True, limits=LIMITS)


def test_only_characters() -> None:
    """Text is valid UTF-8: no lone bytes, no overlong forms, no surrogates."""
    rules: dict[str, Node] = {}
    free_text(rules, "text", then={}, forbidden=["日本"], may_end=True, limits=LIMITS)
    assert accepted(rules, "日月🙂\n\0".encode())
    for text in (b"\xff", b"\xe6\x97", b"\xc0\xaf", b"\xed\xa0\x80", "日本".encode()):
        assert not accepted(rules, text)
