"""Regular expressions against Python's re."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, accepts
from tests.constrained.strategies import anchored_patterns, patterns, texts

from palmette.constrained import (
    CompileLimits,
    Grammar,
    GrammarError,
    GrammarLimitError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
    compile_grammar,
)
from palmette.constrained.char_machine import Recognizer
from palmette.constrained.regex_parser import parse_regex


def matches(pattern: str, text: str) -> bool:
    """Whether our automaton matches `text` in full."""
    return accepts(compile_grammar(Grammar.regex(pattern), BYTES), text)


@settings(max_examples=300, deadline=None)
@given(patterns, texts, texts)
def test_random_patterns_match_what_re_matches(pattern: str, text: str, other: str) -> None:
    """A compiled pattern accepts exactly the texts that re.fullmatch matches."""
    try:
        compiled = compile_grammar(Grammar.regex(pattern), BYTES)
    except UnsatisfiableGrammarError:
        pytest.fail("no pattern of the strategy is empty")
    for candidate in (text, other, text + other, text[:2] * 2):
        assert accepts(compiled, candidate) == (re.fullmatch(pattern, candidate) is not None), candidate


@settings(max_examples=300, deadline=None)
@given(anchored_patterns, st.lists(texts, min_size=1, max_size=6))
def test_lookaround_is_that_of_re(pattern: str, candidates: list[str]) -> None:
    """Anchors, word boundaries, lookahead and lookbehind anywhere, in full matches and in searches."""
    tree = parse_regex(pattern, "python", CompileLimits())
    whole, found = Recognizer(tree, search=False), Recognizer(tree, search=True)
    for text in candidates:
        assert whole.matches(text) == (re.fullmatch(pattern, text) is not None)
        assert found.matches(text) == (re.search(pattern, text) is not None)


@settings(max_examples=100, deadline=None)
@given(anchored_patterns, texts)
def test_lookaround_is_compiled(pattern: str, text: str) -> None:
    """The rules of such a pattern match what its machine does, or nothing where that matches nothing."""
    try:
        assert matches(pattern, text) == (re.fullmatch(pattern, text) is not None)
    except UnsatisfiableGrammarError:
        assert re.fullmatch(pattern, text) is None


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^[\w-.]+$", ["a-.b"], ["a b"]),
        (r"^[\d-x]+$", ["1-x"], ["a"]),
        (r"^\-\_\/]{}{,2}$", ["-_/]{}{,2}"], [""]),
        (r"^[^]$|^a[]$", ["\n"], ["", "ab"]),
        (r"^\u{1F600}\ud83d\ude00\x41\cJ\0$", ["😀😀A\n\0"], [""]),
        (r"^(?<year>\d+)$", ["12"], ["١"]),
        (r"^a$", ["a"], ["a\n"]),
        (r"^.$", ["\x85", "a"], ["\r", "\u2028"]),
        (r"^\s$", ["\ufeff", "\u2028"], ["\x1c", "\x85"]),
        (r"\Aa\Z", ["a"], ["ba", "ab"]),
        (r"(?i)^ab$", ["AB", "ab"], ["a"]),
        (r"^\p{Lu}\P{Lu}\p{digit}\p{gc=Nd}\p{Script=Han}$", ["Aa1٢日"], ["aa12日", "AA12日"]),
        (r"^[\p{L}\p{sc=Greek}_]+$", ["aé_α"], ["1"]),
        (r"^[\ud800-\udbff]$", [], ["a", "\ufffd"]),
    ],
)
def test_ecma(pattern: str, good: list[str], bad: list[str]) -> None:
    """What ECMA-262 means where it differs from re, and what it forgives."""
    recognizer = Recognizer(parse_regex(pattern, "ecma", CompileLimits()), search=True)
    assert all(recognizer.matches(text) for text in good)
    assert not any(recognizer.matches(text) for text in bad)


@pytest.mark.parametrize("pattern", [r"\p{Emoji}", r"\p{Script_Extensions=Han}", r"\p{Klingon}"])
def test_unknown_properties_are_refused(pattern: str) -> None:
    """A property that is not known is refused by its name."""
    with pytest.raises(UnsupportedGrammarError, match="Unicode property"):
        parse_regex(pattern, "ecma", CompileLimits())


@settings(max_examples=100)
@given(patterns, texts)
def test_random_patterns_match_what_interegular_matches(pattern: str, text: str) -> None:
    """A second oracle shares no code with `re`: interegular's automaton. Its classes know ASCII only."""
    import interegular

    text = "".join(char for char in text if char.isascii() and char.isprintable())
    try:
        oracle = interegular.parse_pattern(pattern).to_fsm()
    except (interegular.InvalidSyntax, interegular.Unsupported):
        return
    assert matches(pattern, text) == oracle.accepts(text)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\d{3}-\d{4}$", ["555-1234", "٣٣٣-1234"], ["555-123", "5555-1234"]),
        (r"(?P<year>\d\d)(?#note)[.]", ["99."], ["99"]),
        (r"\Aab\Z|^c$", ["ab", "c"], ["abc", ""]),
        (r"(^a|b)c|d(e$|f)", ["ac", "bc", "de", "df"], ["abc", "c"]),
        (r"a{,2}b{2,}", ["bb", "aabbb"], ["aaabb", "ab"]),
        (r"x{a}{2", ["x{a}{2"], ["xa"]),
        (r"[]a]+[^]a]", ["]a]b"], ["]a]"]),
        (r"[a\-z][-x]", ["--", "zx", "a-"], ["bx"]),
        (r"\x41é\U0001F600\N{BULLET}\0\07\101", ["Aé😀•\0\7A"], [""]),
        (r"[\b]\t\n\f\v\a\r", ["\b\t\n\f\v\a\r"], ["b"]),
        (r"(?s).(?-s:.)", ["\na", "ab"], ["a\n"]),
        (r"(?a)\w\d", ["a1"], ["é1", "a٣"]),
        (r"(?i)straße|[k-l]", ["STRAẞE", "straße", "K", "\u212a", "L"], ["strasse", "m"]),
        (r"(a*)*b", ["b", "aaab"], ["a"]),
        (r"(a|b)*a(a|b){14}", ["a" * 15, "b" * 5 + "a" + "b" * 14], ["b" * 15]),
        (r"(a?){3,5}", ["", "aaaaa"], ["aaaaaa"]),
        (r"((a?b?){2,3}c?){2}", ["", "abababcababab"], ["ababababcabababab"]),
        (r"(){5}a", ["a"], [""]),
        (r"(?=.*\d)(?!foo).{4,}", ["abc1", "1foo"], ["foo1", "abcd"]),
        (r"((?!end)\w)*x(?<=ex|ax)", ["ex", "bax"], ["bx", "endax"]),
        (r"\bcat\b.*|\B\w.", ["cat", "cat sat"], ["cats", ""]),
        (r"(?:a$)*\n?", ["a", "a\n", "\n"], ["aa", "a\n\n"]),
        (r"(?m)a$\n^b|^$", ["a\nb", ""], ["ab", "\n"]),
        (r"é\b \Bé|(?a:é\B é)", ["é é"], ["éé"]),
    ],
)
def test_constructs(pattern: str, good: list[str], bad: list[str]) -> None:
    """Each construct means what it means to re."""
    for text in good:
        assert re.fullmatch(pattern, text), text
        assert matches(pattern, text), text
    for text in bad:
        assert not re.fullmatch(pattern, text), text
        assert not matches(pattern, text), text


@pytest.mark.parametrize(
    ("pattern", "feature", "offset"),
    [
        (r"(a)\1", "backreference", 3),
        (r"(?P<x>a)(?P=x)", "backreference", 8),
        (r"(a)?(?(1)b|c)", "conditional", 4),
        (r"(?>a*)b", "atomic group", 0),
        (r"a*+b", "possessive quantifier", 2),
        (r"(?<=\b)a", "assertion inside a lookbehind", 4),
        (r"(?<=(?<=a))b", "assertion inside a lookbehind", 4),
        (r"(?x)a", "flag 'x'", 0),
    ],
)
def test_refused_by_name(pattern: str, feature: str, offset: int) -> None:
    """What is not supported is refused with its name and its offset, never matched wrongly."""
    with pytest.raises(UnsupportedGrammarError, match=feature) as caught:
        compile_grammar(Grammar.regex(pattern), BYTES)
    assert caught.value.pointer == f"@{offset}"


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[a",
        "*a",
        "a**",
        "a{3,2}",
        "(?P<1>a)",
        r"\q",
        "[b-a]",
        r"\x4",
        "(?z)",
        "a(?i)b",
        r"\N{NO}",
        "^*",
    ],
)
def test_malformed(pattern: str) -> None:
    """A pattern that re rejects is rejected, with where it is wrong."""
    with pytest.raises(re.error):
        re.compile(pattern)
    with pytest.raises(GrammarError, match="bad regular expression") as caught:
        compile_grammar(Grammar.regex(pattern), BYTES)
    assert caught.value.pointer.startswith("@")


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [("a{20000}", "min_repeat"), ("(" * 101 + ")" * 101, "nesting"), ("a" * 2_000_001, "source_chars")],
)
def test_limits(pattern: str, limit: str) -> None:
    """Huge patterns end with an error that names the limit, at once."""
    with pytest.raises(GrammarLimitError, match=limit):
        compile_grammar(Grammar.regex(pattern), BYTES)


def test_large_upper_bounds_cost_nothing() -> None:
    """Counters, not copies: an upper bound of a billion compiles to a few positions."""
    compiled = compile_grammar(
        Grammar.regex("(?:[a-z]{0,1000000000}x){0,1000000000}"), BYTES, limits=CompileLimits(positions=20)
    )
    assert accepts(compiled, "abcx" * 50)


def test_groups_nest_to_the_limit() -> None:
    """The deepest nesting that is allowed is handled, quantifiers and branches at every level included."""
    depth = CompileLimits().nesting
    compiled = compile_grammar(Grammar.regex("(?:a|b" * depth + ")*c" * depth), BYTES)
    assert accepts(compiled, "b" * depth + "c" * depth)
    assert accepts(compiled, "ac")


def test_nothing_matches() -> None:
    """A pattern without any text is unsatisfiable, not an automaton that is stuck."""
    with pytest.raises(UnsatisfiableGrammarError):
        compile_grammar(Grammar.regex(r"a[^\s\S]"), BYTES)


def test_states_are_bounded() -> None:
    """A grammar that meets too many states raises for its request only."""
    compiled = compile_grammar(Grammar.regex("(a|b)*a(a|b){14}"), BYTES, limits=CompileLimits(states=10))
    with pytest.raises(GrammarLimitError, match="states"):
        accepts(compiled, "ab" * 20)
