"""Every mask of random grammars is what trying each token's bytes one by one says, with all short cuts in play."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.reference import Derivatives, token_set
from tests.constrained.strategies import patterns, schemas
from tests.constrained.test_graph import Between

from palmette.constrained import Grammar, Vocabulary
from palmette.constrained import vocabulary as vocabulary_module
from palmette.constrained.automaton import LazyAutomaton
from palmette.constrained.compiled import CompiledGrammar
from palmette.constrained.compiler import lower
from palmette.constrained.errors import UnsatisfiableGrammarError, UnsupportedGrammarError
from palmette.constrained.limits import DEFAULT_LIMITS, Deadline
from palmette.constrained.program import build_program
from palmette.constrained.rules import (
    NOTHING,
    ByteClass,
    Choice,
    Except,
    Flagged,
    Graph,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    byte_range,
    byte_set,
)
from palmette.constrained.simplify import simplify

WORDS = [b"abc", b"cab", b"zz", b"abcabc", b"a z", b"b!", b"!a", b"!!", b'a"', b"ab ab ab ab ab ab ab"]
WIDE = ["é".encode(), "aé".encode(), "日b".encode(), "é".encode()[1:] + b"a", "😀".encode()[:2], "日".encode()[:2]]
LETTERS = [bytes([byte]) for byte in b"abcz !"]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of even one token, and of few characters, so that a handful of tokens is put aside as thousands are."""
    monkeypatch.setattr(vocabulary_module, "FEWEST_TOKENS", 1)
    monkeypatch.setattr(vocabulary_module, "MOST_CHARACTERS", (16, 3, 2, 1))


@st.composite
def small_vocabularies(draw: st.DrawFn) -> Vocabulary:
    """The letters or all bytes, and some longer tokens, a few of them parts of characters."""
    singles = LETTERS if draw(st.booleans()) else [bytes([byte]) for byte in range(256)]
    tokens = draw(st.lists(st.sampled_from(WORDS + WIDE), max_size=8))
    return Vocabulary([*singles, *tokens], end_ids=[len(singles) + len(tokens)], size=len(singles) + len(tokens) + 1)


_ATOMS: list[Node] = [
    Literal(b"a"),
    Literal(b"ab"),
    Literal("é".encode()),
    byte_range(ord("a"), ord("c")),
    byte_range(ord("a"), ord("z")),
    byte_set(b"abcz !"),
    *map(RuleRef, ("text", "letter", "words", "some")),
]
_RULES: dict[str, Node] = {
    "text": Choice(
        (
            byte_set(byte for byte in range(0x20, 0x7F) if byte not in b'"\\'),
            Sequence((byte_range(0xC2, 0xDF), byte_range(0x80, 0xBF))),
            Sequence((byte_range(0xE0, 0xE0), byte_range(0xA0, 0xBF), byte_range(0x80, 0xBF))),
            Sequence((byte_set([*range(0xE1, 0xED), 0xEE, 0xEF]), *[byte_range(0x80, 0xBF)] * 2)),
            Sequence((byte_range(0xED, 0xED), byte_range(0x80, 0x9F), byte_range(0x80, 0xBF))),
            Sequence((byte_range(0xF0, 0xF0), byte_range(0x90, 0xBF), *[byte_range(0x80, 0xBF)] * 2)),
            Sequence((byte_range(0xF1, 0xF3), *[byte_range(0x80, 0xBF)] * 3)),
            Sequence((byte_range(0xF4, 0xF4), byte_range(0x80, 0x8F), *[byte_range(0x80, 0xBF)] * 2)),
        )
    ),
    "letter": byte_range(ord("a"), ord("m")),
    "words": Except(Repeat(byte_range(ord("a"), ord("c")), 1, None), frozenset({b"a", b"ab", b"cab"})),
    "some": Choice((byte_range(ord("a"), ord("m")), Sequence((byte_range(ord("n"), ord("z")), byte_set(b"!"))))),
}
_COUNTS = [(0, None), (1, None), (0, 1), (2, 2), (0, 3), (2, None), (1, 4), (0, 40), (20, 25), (30, None), (0, 300)]


def _grown(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    letters = byte_range(ord("a"), ord("c"))
    counted: list[Node] = [letters, Literal(b"ab"), RuleRef("some")]
    excluded = st.frozensets(st.text("abc", min_size=1, max_size=3).map(str.encode), max_size=4)
    return st.one_of(
        st.tuples(nodes, st.sampled_from(_COUNTS)).map(lambda part: Repeat(part[0], *part[1])),
        st.lists(nodes, min_size=2, max_size=3).map(lambda parts: Sequence(tuple(parts))),
        st.lists(nodes, min_size=2, max_size=3).map(lambda parts: Choice(tuple(parts))),
        nodes.map(lambda node: Flagged(node, 1)),
        excluded.map(lambda words: Except(Repeat(letters, 0, None), words)),
        st.tuples(st.sampled_from([(0, 2), (1, 3), (0, 40)]), st.sampled_from(counted)).map(
            lambda part: Graph(Counted(2, *part[0]), (part[1], ByteClass(1 << ord("z"))), 0)
        ),
        # A loop whose body is told apart only by what comes after it: it covers more than the rule that it repeats.
        st.just(Repeat(Sequence((Repeat(RuleRef("letter"), 0, None), byte_range(ord("n"), ord("z")))), 0, None)),
    )


nodes: st.SearchStrategy[Node] = st.recursive(st.sampled_from(_ATOMS), _grown, max_leaves=5)


class Counted(Between):
    """`Between`, whose counts stand for each other where they are far from the bounds."""

    def near(self, state: Hashable, horizon: int) -> Hashable:
        """The count that is just far enough from the upper bound."""
        assert isinstance(state, int)
        return max(state, self.high - horizon) if state >= self.low else state


def automaton_of(rules: Rules, vocabulary: Vocabulary) -> LazyAutomaton:
    """The automaton of `rules`, simplified only where that must be."""
    for each in (rules, simplify(rules, vocabulary.alphabet)):
        program = build_program(each, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS), vocabulary.alphabet)
        automaton = LazyAutomaton(program, DEFAULT_LIMITS, vocabulary.preferred_bytes, alphabet=vocabulary.alphabet)
        if automaton.is_ready():
            break
    return automaton


def check(rules: Rules, vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Walk at random and compare every state with derivatives; then follow the shortest ending."""
    simple = simplify(rules, vocabulary.alphabet)
    automaton = automaton_of(rules, vocabulary)
    compiled = CompiledGrammar(Grammar.regex("random"), vocabulary, automaton)
    reference = Derivatives(simple)
    state, node = compiled.start, reference.start
    for _ in range(8):
        allowed = reference.allowed(node, vocabulary)
        assert token_set(compiled.mask(state)) == allowed
        assert compiled.is_accepting(state) == reference.accepts(node)
        if not compiled.is_accepting(state):
            first = {(vocabulary.token_bytes[i] or b"")[0] for i in allowed}
            assert first <= {byte for byte in range(256) if automaton.next_bytes(state) >> byte & 1}
            assert all(
                reference.after(node, byte) != NOTHING for byte in range(256) if automaton.next_bytes(state) >> byte & 1
            )
        choices = sorted(allowed - vocabulary.end_ids)
        if not choices:
            break
        token = data.draw(st.sampled_from(choices))
        following = compiled.advance(state, token)
        assert following is not None
        state, node = following, reference.after_all(node, vocabulary.token_bytes[token] or b"")
    while not compiled.is_accepting(state):
        length = automaton.ending_length(state)
        byte, state = automaton.ending_step(state)
        assert automaton.ending_length(state) == length - 1
        node = reference.after(node, byte)
    assert reference.accepts(node)


@settings(max_examples=150, deadline=None)
@given(nodes, small_vocabularies(), st.data())
def test_random_rules(node: Node, vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Rules of every kind of node: counts, graphs, words left out, flags, shared rules."""
    rules = Rules("start", {"start": node, **_RULES})
    with suppress(UnsatisfiableGrammarError):
        check(rules, vocabulary, data)


@settings(max_examples=75, deadline=None)
@given(patterns | schemas, small_vocabularies(), st.data())
def test_random_patterns_and_schemas(source: Any, vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Patterns and schemas as people write them."""
    grammar = Grammar.regex(source) if isinstance(source, str) else Grammar.json_schema(source)
    with suppress(UnsatisfiableGrammarError, UnsupportedGrammarError):
        check(lower(grammar, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS)), vocabulary, data)


def test_a_loop_does_not_lend_its_cover() -> None:
    """What a loop takes thanks to what follows it, another loop over the same rule does not take."""
    letters = RuleRef("letter")
    loop = Repeat(Sequence((Repeat(letters, 0, None), byte_range(ord("n"), ord("z")))), 0, None)
    rules = Rules("start", {"start": Sequence((loop, Literal(b"!"), Repeat(letters, 0, None))), **_RULES})
    vocabulary = Vocabulary([*LETTERS, b"zz"], end_ids=[7], size=8)
    automaton = automaton_of(rules, vocabulary)
    compiled = CompiledGrammar(Grammar.regex("loops"), vocabulary, automaton)
    assert token_set(compiled.mask(compiled.start)) == {0, 1, 2, 3, 5, 6}
    state = compiled.advance(compiled.start, 5)
    assert state is not None
    assert token_set(compiled.mask(state)) == {0, 1, 2, 7}
