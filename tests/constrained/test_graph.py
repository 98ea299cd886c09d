"""Graphs, words left out and flags: the nodes of the rules that stand for very many texts."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Items

from hypothesis import given
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, Derivatives, token_set

from palmette.constrained.automaton import LazyAutomaton
from palmette.constrained.compiled import CompiledGrammar
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import DEFAULT_LIMITS, Deadline
from palmette.constrained.program import build_program
from palmette.constrained.rules import (
    OPEN_OBJECT,
    Choice,
    Except,
    Flagged,
    Graph,
    Literal,
    Node,
    Repeat,
    Rules,
    Sequence,
    StateGraph,
    byte_range,
)
from palmette.constrained.simplify import simplify


class Between(StateGraph):
    """Any bodies, `low` to `high` in all; the state is how many there were."""

    def __init__(self, bodies: int, low: int, high: int) -> None:
        self.bodies, self.low, self.high = bodies, low, high

    def edges(self, state: Hashable) -> Iterable[tuple[int, Hashable]]:
        """One more of any, up to `high`."""
        assert isinstance(state, int)
        return [(body, state + 1) for body in range(self.bodies)] if state < self.high else []

    def ends(self, state: Hashable) -> bool:
        """From `low` on."""
        assert isinstance(state, int)
        return state >= self.low

    def cost(self, state: Hashable, costs: Items[float]) -> float:
        """The cheapest body as often as needed."""
        assert isinstance(state, int)
        return max(0, self.low - state) * min(costs) if state < self.low else 0.0


def compiled(node: Node) -> tuple[CompiledGrammar, Rules]:
    """`node` as a grammar over bytes, and its rules."""
    rules = simplify(Rules("start", {"start": node}), BYTES.alphabet)
    rules.verify()
    program = build_program(rules, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS))
    automaton = LazyAutomaton(program, DEFAULT_LIMITS, BYTES.preferred_bytes)
    return CompiledGrammar(Grammar.regex("graph"), BYTES, automaton), rules


LETTERS = byte_range(ord("a"), ord("c"))
words = st.frozensets(st.text("abc", min_size=1, max_size=3).map(str.encode), max_size=5)
bodies = st.sampled_from(
    [Literal(b"ab"), Literal(b"a"), LETTERS, Repeat(LETTERS, 2, 3), Choice((Literal(b"ba"), Literal(b"c")))]
)


def check(node: Node, data: st.DataObject, steps: int = 8) -> None:
    """Walk `node` at random beside its derivatives; then follow the shortest ending to its end."""
    grammar, rules = compiled(node)
    reference = Derivatives(rules)
    state, here = grammar.start, reference.start
    for _ in range(steps):
        allowed = reference.allowed(here, BYTES)
        assert token_set(grammar.mask(state)) == allowed
        choices = sorted(allowed - BYTES.end_ids)
        if not choices:
            break
        byte = data.draw(st.sampled_from(choices))
        following = grammar.advance(state, byte)
        assert following is not None
        state, here = following, reference.after(here, byte)
    ending = grammar.shortest_ending(state)
    assert len(ending) == grammar.ending_bytes(state)
    for byte in ending:
        here = reference.after(here, byte)
    assert reference.accepts(here)


@given(st.lists(bodies, min_size=1, max_size=3), st.integers(0, 3), st.integers(0, 3), st.data())
def test_graphs_allow_what_their_ways_spell(parts: list[Node], low: int, more: int, data: st.DataObject) -> None:
    """A graph of counted bodies, its end and its shortest ending agree with derivatives."""
    graph = Graph(Between(len(parts), low, low + more), tuple(parts), 0)
    check(Sequence((graph, Literal(b"!"))), data)


@given(words, st.data())
def test_words_are_left_out(excluded: frozenset[bytes], data: st.DataObject) -> None:
    """Everything but the words may be spelled, and the shortest ending is none of them."""
    check(Sequence((Except(Repeat(LETTERS, 0, None), excluded), Literal(b"!"))), data)


@given(words, st.data())
def test_words_are_left_out_of_each_body(excluded: frozenset[bytes], data: st.DataObject) -> None:
    """Words left out inside a graph begin anew with each of its bodies."""
    part = Sequence((Except(Repeat(LETTERS, 1, None), excluded), Literal(b",")))
    check(Graph(Between(1, 1, 3), (part,), 0), data)


def test_dead_bodies_close_their_ways() -> None:
    """A body that matches nothing is never begun, and a graph that needs it matches nothing."""
    grammar, _ = compiled(Graph(Between(2, 1, 2), (Choice(()), Literal(b"a")), 0))
    assert token_set(grammar.mask(grammar.start)) == {ord("a")}
    assert Between(1, 1, 2).cost(0, [math.inf]) == math.inf


def test_flags_stand_before_their_bytes() -> None:
    """A state has the flags of the bytes that may come next."""
    rules = simplify(
        Rules("start", {"start": Sequence((Literal(b"a"), Flagged(Literal(b"{"), OPEN_OBJECT)))}), 2**256 - 1
    )
    program = build_program(rules, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS))
    automaton = LazyAutomaton(program, DEFAULT_LIMITS, range(256))
    assert automaton.flags(automaton.start) == 0
    assert automaton.flags(automaton.step(automaton.start, ord("a"))) == OPEN_OBJECT


@given(words, st.data())
def test_a_word_that_its_last_byte_ends(excluded: frozenset[bytes], data: st.DataObject) -> None:
    """Where the last byte of a word would end the text as well, as a quote ends a key, that byte may not come."""
    body = Sequence((Literal(b'"'), Repeat(LETTERS, 0, None), Literal(b'"')))
    check(Sequence((Except(body, frozenset(b'"' + word + b'"' for word in excluded | {b""})), Literal(b"!"))), data)
