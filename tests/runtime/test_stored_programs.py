"""Programs of grammars as bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.constrained import CompileLimits, Grammar, Vocabulary, compile_grammar
from palmette.constrained.compiler import compile_program, make_program
from palmette.constrained.limits import Deadline
from palmette.constrained.program import Program, build_program
from palmette.constrained.rules import Except, Graph, Literal, Node, Repeat, Rules, Sequence, StateGraph
from palmette.runtime.stored_programs import FORMAT, UnreadableProgramError, pack_program, unpack_program

LIMITS = CompileLimits()
VOCABULARY = Vocabulary([bytes([byte]) for byte in range(256)])
HUGE = 10**40
GRAMMARS = [
    Grammar.regex(r"[a-z]{2,300}(x|yz)*"),
    Grammar.json_schema({"type": "object", "minProperties": 2, "properties": {"a": {"type": "integer"}}}),
    Grammar.json_schema(
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]}, key_order="any"
    ),
    Grammar.json_schema({"type": "array", "contains": {"const": 1}, "maxContains": 2, "uniqueItems": True}),
    Grammar.structural_tag(
        {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<"]}
    ),
]


@dataclass(frozen=True)
class Chain(StateGraph):
    """Body 0, `length` times."""

    length: int

    def edges(self, state: Hashable) -> Iterable[tuple[int, Hashable]]:
        assert isinstance(state, int)
        return [(0, state + 1)] if state < self.length else []

    def ends(self, state: Hashable) -> bool:
        return state == self.length

    def cost(self, state: Hashable, costs: Items[float]) -> float:
        assert isinstance(state, int)
        return (self.length - state) * costs[0]


def program_of(node: Node) -> Program:
    return build_program(Rules("start", {"start": node}), LIMITS, Deadline(LIMITS))


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_what_comes_back_is_the_same_grammar(grammar: Grammar) -> None:
    """Whatever it goes through (graphs, left-out words, flags): the masks agree along its shortest text and beyond."""
    program = make_program(grammar, VOCABULARY.alphabet, LIMITS, Deadline(LIMITS))
    packed = pack_program(program)
    assert packed.is_plain
    there = compile_program(grammar, unpack_program(packed.data), VOCABULARY, LIMITS)
    assert there is not None
    ours, theirs = compile_grammar(grammar, VOCABULARY).matcher(), there.matcher()
    for token_id in (*ours.shortest_ending(), None):
        assert np.array_equal(ours.mask(), theirs.mask())
        if token_id is not None:
            ours.accept(token_id)
            theirs.accept(token_id)


def test_arrays_and_words_come_back_as_they_were() -> None:
    """Every number, the largest included."""
    words = frozenset((b"a", b"\xff\x00"))
    program = program_of(Sequence((Repeat(Literal(b"ab"), 2, HUGE), Except(Repeat(Literal(b"a"), 1, None), words))))
    back = unpack_program(pack_program(program).data)
    assert np.array_equal(back.positions, program.positions)
    assert np.array_equal(back.targets, program.targets)
    assert np.array_equal(back.masks, program.masks)
    assert back.words == program.words
    assert (back.start, back.rules) == (program.start, program.rules)
    assert back.positions.flags.writeable


def test_a_graph_of_another_package_is_for_a_private_pipe_alone() -> None:
    """Its spec is pickled: our own child may send it, but it is neither stored nor read from a file."""
    packed = pack_program(program_of(Graph(Chain(3), (Literal(b"x"),), 0)))
    assert not packed.is_plain
    (graph,) = unpack_program(packed.data, is_private=True).graphs.values()
    assert (graph.spec, graph.state, len(graph.bodies)) == (Chain(3), 0, 1)
    with pytest.raises(UnreadableProgramError, match="pickled"):
        unpack_program(packed.data)


def test_a_graph_of_ours_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dataclasses of the grammars' own package are written as their fields; one spec of many graphs is read once."""
    monkeypatch.setattr("palmette.runtime.stored_programs._CLASSES", Chain.__module__.partition(".")[0] + ".")
    states: list[Hashable] = [0, HUGE, None, "\ud800", b"b", (1, ("x", 2.5)), frozenset((1, 2)), (Chain(1), True)]
    spec = Chain(HUGE)
    packed = pack_program(program_of(Sequence(tuple(Graph(spec, (Literal(b"x"),), state) for state in states))))
    assert packed.is_plain
    graphs = unpack_program(packed.data).graphs.values()
    assert {graph.state for graph in graphs} == set(states)
    assert {id(graph.spec) for graph in graphs} == {id(next(iter(graphs)).spec)}
    assert next(iter(graphs)).spec == spec


@pytest.mark.parametrize(
    ("array", "index", "value"),
    [(0, (1, 1), 10**6), (0, (1, 0), 99), (0, (1, 7), 10**6), (1, (0,), -1), (1, (0,), 10**6)],
)
def test_places_that_do_not_exist_are_refused(array: int, index: tuple[int, ...], value: int) -> None:
    """The compiled loops check no bounds, so they are checked when a program is read."""
    program = program_of(Repeat(Literal(b"ab"), 0, None))
    changed = [program.positions.copy(), program.targets.copy()]
    changed[array][index] = value
    damaged = replace(program, positions=changed[0], targets=changed[1])
    with pytest.raises(UnreadableProgramError, match="does not exist"):
        unpack_program(pack_program(damaged).data)


@pytest.mark.parametrize(
    "table",
    [
        [FORMAT + 1, [b"", b"", b""], 0, 1, [], [], []],
        [FORMAT, [b"", b"", b""], 0, 1, [], [], []],
        [FORMAT, [bytes(40), bytes(4)], 0, 1, [], [], []],
        [FORMAT, [bytes(39), bytes(4), bytes(32)], 0, 1, [], [], []],
        [FORMAT, [bytes(40), bytes(4), bytes(32)], 5, 1, [], [], []],
        [FORMAT, [bytes(40), bytes(4), bytes(32)], 0, 1, [], [[0, 0, 0]], []],
        [FORMAT, [bytes(40), bytes(4), bytes(32)], 0, 1, [["object", "os:system"]], [], []],
        [FORMAT, [bytes(40), bytes(4), bytes(32)], 0, 1, [["object", "palmette.constrained.rules:Rules"]], [], []],
        [FORMAT, [bytes(40), bytes(4), bytes(32)], 0, 1, [["object", "palmette.constrained.nowhere:X"]], [], []],
        [FORMAT, [bytes(40), bytes(4), bytes(32)], 0, 1, [["unknown"]], [], []],
        {},
        [],
    ],
)
def test_nonsense_is_refused(table: Any) -> None:
    """What this version did not write is one kind of error, whatever is wrong with it."""
    with pytest.raises(UnreadableProgramError):
        unpack_program(msgspec.msgpack.encode(table))


@given(st.binary(max_size=40))
def test_bytes_that_are_no_program_are_refused(data: bytes) -> None:
    """Any bytes at all are read without harm."""
    with pytest.raises(UnreadableProgramError):
        unpack_program(data)
