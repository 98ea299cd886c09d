"""Sets of JSON strings as rules, against a direct evaluation of their properties."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, accepts, token_set
from tests.constrained.strategies import ecma_patterns, texts

from palmette.constrained import GrammarError, GrammarLimitError, UnsupportedGrammarError
from palmette.constrained.automaton import LazyAutomaton
from palmette.constrained.compiled import CompiledGrammar
from palmette.constrained.grammar import Grammar
from palmette.constrained.json_options import DEFAULT_JSON_OPTIONS
from palmette.constrained.json_strings import Strings, StringSet, Test
from palmette.constrained.json_text import shared_rules, string_literal
from palmette.constrained.limits import DEFAULT_LIMITS, CompileLimits, Deadline
from palmette.constrained.program import build_program
from palmette.constrained.rules import NOTHING, Node, Rules
from palmette.constrained.simplify import simplify


def new_strings(rules: dict[str, Node] | None = None) -> Strings:
    """A maker of string sets with the usual options."""
    return Strings(rules if rules is not None else {}, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS), DEFAULT_JSON_OPTIONS)


def compiled(strings: StringSet, *, key: bool = False) -> CompiledGrammar | None:
    """The rules of a set as an automaton over bytes; None where they match nothing."""
    rules: dict[str, Node] = dict(shared_rules())
    maker = new_strings(rules)
    node = maker.key(strings) if key else maker.value(strings)
    assert (node == NOTHING) == maker.is_empty(strings)
    if node == NOTHING:
        return None
    simple = simplify(Rules("start", {**rules, "start": node}), BYTES.alphabet)
    simple.verify()
    program = build_program(simple, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS))
    return CompiledGrammar(
        Grammar.regex("strings"), BYTES, LazyAutomaton(program, DEFAULT_LIMITS, BYTES.preferred_bytes)
    )


def pattern(text: str) -> Test:
    """The property that `text` is found."""
    return Test("pattern", text, "/pattern")


def spell(strings: StringSet, text: str, *, key: bool = False) -> bool:
    """Whether the rules of `strings` accept `text` as `json.dumps` spells it."""
    automaton = compiled(strings, key=key)
    return automaton is not None and accepts(automaton, string_literal(text).value.decode())


def admits(strings: StringSet, oracles: dict[str, str], text: str) -> bool:
    """A direct evaluation: `oracles` are the same patterns for Python's re."""
    return (
        len(text) >= strings.low
        and (strings.high is None or len(text) <= strings.high)
        and text not in strings.excluded
        and all(re.search(oracles[test.text], text, re.ASCII) for test in strings.required)
        and not any(re.search(oracles[test.text], text, re.ASCII) for test in strings.forbidden)
    )


bounds = st.tuples(st.integers(0, 4), st.none() | st.integers(0, 4)).map(
    lambda found: (found[0], None if found[1] is None else found[0] + found[1])
)


@st.composite
def sets(draw: st.DrawFn) -> tuple[StringSet, dict[str, str]]:
    """A set of strings, and its patterns in Python's syntax."""
    required = draw(st.lists(ecma_patterns, max_size=2))
    forbidden = draw(st.lists(ecma_patterns, max_size=2))
    low, high = draw(bounds)
    excluded = draw(st.frozensets(texts, max_size=3))
    made = StringSet(
        tuple(pattern(ecma) for ecma, _ in required), tuple(pattern(ecma) for ecma, _ in forbidden), low, high, excluded
    )
    return made, dict([*required, *forbidden])


@settings(max_examples=200, deadline=None)
@given(sets(), st.booleans(), st.lists(texts, min_size=1, max_size=6), st.data())
def test_sets_against_direct_evaluation(
    found: tuple[StringSet, dict[str, str]], key: bool, candidates: list[str], data: st.DataObject
) -> None:
    """Exactly the texts of the set are accepted; every walk through the masks ends, with a text of the set."""
    strings, oracles = found
    assume(not key or not strings.excluded or (strings.required or strings.forbidden or strings.low or strings.high))
    automaton = compiled(strings, key=key)
    maker = new_strings()
    for text in (*candidates, *strings.excluded, ""):
        is_in = admits(strings, oracles, text)
        assert maker.admits(strings, text) == is_in
        spelled = string_literal(text).value.decode()
        assert (automaton is not None and accepts(automaton, spelled)) == is_in, text
    if automaton is None:
        return
    state, spelled_bytes = automaton.start, b""
    for _ in range(data.draw(st.integers(0, 12))):
        choices = sorted(token_set(automaton.mask(state)) - BYTES.end_ids)
        if not choices:
            break
        byte = data.draw(st.sampled_from(choices))
        following = automaton.advance(state, byte)
        assert following is not None
        state, spelled_bytes = following, spelled_bytes + bytes((byte,))
    ending = automaton.shortest_ending(state)
    text = json.loads((spelled_bytes + bytes(ending)).decode("utf-8"))
    assert admits(strings, oracles, text), text


@given(st.frozensets(texts, min_size=1, max_size=3))
def test_keys_but_some(excluded: frozenset[str]) -> None:
    """A word that is left out cannot be completed by its closing quote."""
    automaton = compiled(StringSet(excluded=excluded), key=True)
    assert automaton is not None
    for word in excluded:
        state: int | None = automaton.start
        for byte in string_literal(word).value[:-1]:
            assert state is not None
            state = automaton.advance(state, byte)
        assert state is not None
        assert ord('"') not in token_set(automaton.mask(state))


@settings(max_examples=100, deadline=None)
@given(sets())
def test_words_are_those_of_small_sets(found: tuple[StringSet, dict[str, str]]) -> None:
    """A list of words is the whole set: sorted, each once, each admitted, and no other."""
    strings, oracles = found
    maker = new_strings()
    words = maker.words(strings, 20)
    assert maker.is_empty(strings) == (words == [])
    if words is not None:
        assert words == sorted(set(words))
        assert all(admits(strings, oracles, word) for word in words)
        assert maker.is_empty(replace(strings, excluded=strings.excluded | frozenset(words)))


def test_finite_sets_are_listed() -> None:
    """Choices of a pattern are words, less those that are excluded or too long; without bound there is no list."""
    maker = new_strings()
    choices = StringSet((pattern("^(red|green|blue)$"),))
    assert maker.words(choices, 3) == ["blue", "green", "red"]
    assert maker.words(choices, 2) is None
    assert maker.words(replace(choices, excluded=frozenset({"red"}), high=4), 3) == ["blue"]
    assert maker.words(StringSet((pattern("^a*$"),), high=2), 3) == ["", "a", "aa"]
    assert maker.words(StringSet((pattern("^a*$"),)), 100) is None
    assert maker.words(StringSet((pattern("red"),)), 100) is None
    assert maker.words(StringSet(high=0), 1) == [""]
    assert maker.words(StringSet(high=1), 10) is None
    assert maker.words(StringSet(forbidden=(pattern("^.+$"), pattern(r"[^]"))), 1) == [""]


@pytest.mark.parametrize(
    ("strings", "good", "bad"),
    [
        (StringSet((pattern("^(?!foo)(?=.*\\d).{8,}$"),)), ["abcdefg1"], ["foodefg1", "abcdefgh", "abc1"]),
        (StringSet((pattern("^((?!(c|C)lyde).)*$"),)), ["bonnie", "", "clyd"], ["clyde", "xClydex"]),
        (StringSet((pattern("^[a-z]([a-z-]*[a-z])?$"),), high=5), ["a", "ab-cd"], ["ab-", "abcdef"]),
        (StringSet((pattern(r"\S"),), low=2, high=3), [" a", "ab "], ["a", "   ", "abcd"]),
        (StringSet((pattern("^a*$"), pattern("^(aa)*$")), low=3), ["aaaa"], ["aa", "aaa"]),
        (StringSet((pattern("^a*$"),), (pattern("^(aa)*$"),)), ["a", "aaa"], ["", "aa"]),
        (StringSet((Test("format", "date", ""),), (pattern("^2"),)), ["1999-12-31"], ["2000-01-01", "1999-13-01"]),
        (StringSet((), (Test("format", "date", ""),)), ["1999-13-31", ""], ["2000-01-01"]),
        (StringSet((pattern(r"\bcat\b"),)), ["a cat.", "cat"], ["concat", "cats"]),
        (StringSet((pattern(r"^\p{Letter}+$"),)), ["école", "日本"], ["a1", ""]),
        (StringSet((pattern(r"^\p{Script=Greek}\P{L}$"),)), ["α1"], ["a1", "αβ"]),
        (StringSet((pattern("(^a|b$)"),), low=2), ["ax", "xb"], ["a", "xx"]),
        (StringSet(low=2, high=2, excluded=frozenset({"ab"})), ["ac", "😀😀"], ["ab", "a", "abc"]),
    ],
)
def test_kinds_of_sets(strings: StringSet, good: list[str], bad: list[str]) -> None:
    """One example of each way to make a set, as values and as keys."""
    for key in (False, True):
        for text in good:
            assert spell(strings, text, key=key), text
        for text in bad:
            assert not spell(strings, text, key=key), text


def test_escapes_of_values() -> None:
    """A value may be spelled with any escape, whatever form its rules take; a key in one way."""
    for strings in (
        StringSet((pattern("^[a-z]+$"),)),
        StringSet((pattern("^[a-z]+$"),), (pattern("b"),)),
        StringSet((pattern("a"),), high=2),
        StringSet(excluded=frozenset({"b"})),
    ):
        value, key = compiled(strings), compiled(strings, key=True)
        assert value is not None
        assert key is not None
        assert accepts(value, '"\\u0061"')
        assert not accepts(key, '"\\u0061"')
        assert accepts(key, '"a"')


@pytest.mark.parametrize("high", [None, 100_000])
@pytest.mark.parametrize("low", [0, 1, 1000])
def test_long_strings(low: int, high: int | None) -> None:
    """Lengths cost little: what is accepted at 1000 characters, and an ending that is exact."""
    strings = StringSet((pattern("^[a-z]+( [a-z]+)*$"),), low=low, high=high)
    automaton = compiled(strings)
    assert automaton is not None
    assert len(automaton.shortest_ending(automaton.start)) == max(low, 1) + 2
    assert accepts(automaton, '"' + "ab " * 400 + 'a"')
    assert not accepts(automaton, '"' + "ab " * 400 + '"')


def test_the_end_of_a_bound_leaves_no_dead_end() -> None:
    """Before the last character of an even text of at most 7, nothing that could not be completed is allowed."""
    automaton = compiled(StringSet((pattern("^(ab|cd)*e?$"),), low=5, high=6))
    assert automaton is not None
    state = automaton.start
    for byte in b'"ababa':
        following = automaton.advance(state, byte)
        assert following is not None
        state = following
    assert token_set(automaton.mask(state)) & set(b'abcde"') == {ord("b")}
    five = automaton.advance(automaton.start, ord('"'))
    assert five is not None


def test_user_patterns_alone_are_not_determinised() -> None:
    """A pattern whose automaton has exponentially many states compiles where it stands alone."""
    for text in ("^(a|b)*a(a|b){14}$", "(a|b)*a(a|b){20}"):
        assert spell(StringSet((pattern(text),)), "a" * 30)


def test_errors_name_the_keyword() -> None:
    """What is refused carries the pointer of its keyword."""
    maker = new_strings()
    with pytest.raises(UnsupportedGrammarError, match="backreference") as caught:
        maker.value(StringSet((Test("pattern", r"(a)\1", "/properties/a/pattern"),)))
    assert caught.value.pointer == "/properties/a/pattern"
    with pytest.raises(GrammarError, match="bad regular expression") as malformed:
        maker.value(StringSet((pattern("("),)))
    assert malformed.value.pointer == "/pattern"
    with pytest.raises(GrammarLimitError) as large:
        maker.value(StringSet((pattern("^(a|b)*a(a|b){20}$"), pattern("c"))))
    assert large.value.pointer == "/pattern"


def test_contradictions_are_nothing() -> None:
    """A set without strings gives the rule that matches nothing."""
    maker = new_strings()
    for strings in (
        StringSet(low=2, high=1),
        StringSet((pattern("^a$"),), low=2),
        StringSet((pattern("^a$"),), (pattern("a"),)),
        StringSet((pattern("^a$"), pattern("^b$"))),
        StringSet((pattern("^(a|b)$"),), excluded=frozenset({"a", "b"})),
        StringSet((pattern("[]"),)),
        StringSet((pattern("^(aa)*$"),), low=3, high=3),
        StringSet(excluded=frozenset({""}), high=0),
    ):
        assert maker.is_empty(strings)
        assert maker.value(strings) == NOTHING
        assert maker.key(strings) == NOTHING
        assert maker.words(strings, 5) == []


@pytest.mark.parametrize(
    "strings",
    [
        StringSet((pattern("|".join(f"word{i}" for i in range(1400))),), high=50),
        StringSet((), (pattern("^(" + "|".join(f"word{i}" for i in range(1400)) + ")$"),)),
        StringSet((pattern("^" + "[a-z]?" * 1600 + "$"),), high=1000),
        StringSet((pattern("^" + "(a|" * 99 + "b" + ")*" * 99 + "$"),), high=1000),
        StringSet((pattern("[a-z]{1,10000}$"),), high=20_000),
        StringSet((pattern("^(?!foo)[a-z]{1,10000}$"),)),
        StringSet((), (pattern("(a|b)*a(a|b){20}"),), excluded=frozenset(f"name_{i}" for i in range(1000))),
    ],
)
def test_hard_sets_are_bounded(strings: StringSet) -> None:
    """What is large is made within two seconds of processor time, or refused as too large."""
    start = time.thread_time()
    with contextlib.suppress(GrammarLimitError):
        assert new_strings().value(strings) != NOTHING
    assert time.thread_time() - start < 15  # on a busy machine; what is not bounded takes minutes


def test_limits_apply() -> None:
    """A pattern that is too long is refused by the limit's name."""
    limits = CompileLimits(source_chars=10)
    maker = Strings({}, limits, Deadline(limits), DEFAULT_JSON_OPTIONS)
    with pytest.raises(GrammarLimitError, match="source_chars"):
        maker.value(StringSet((pattern("a" * 11),)))
