"""Rules as bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.constrained.rules import (
    OPEN_KEY,
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
    StateGraph,
    postorder,
)
from palmette.runtime.stored_rules import FORMAT, UnreadableRulesError, pack_rules, unpack_rules

HUGE = 10**40


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


leaves: st.SearchStrategy[Node] = st.one_of(
    st.binary(max_size=4).map(Literal),
    st.integers(0, (1 << 256) - 1).map(ByteClass),
    st.sampled_from(["start", "\ud800"]).map(RuleRef),
)


def _inner(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(nodes, max_size=3).map(tuple)
    return st.one_of(
        several.map(Sequence),
        several.map(Choice),
        st.builds(Repeat, nodes, st.integers(0, 3), st.sampled_from([None, 5, HUGE])),
        st.builds(Except, nodes, st.frozensets(st.binary(max_size=3), max_size=3)),
        st.builds(Flagged, nodes, st.just(OPEN_KEY)),
    )


nodes = st.recursive(leaves, _inner, max_leaves=12)


@given(nodes, nodes)
def test_rules_come_back_as_they_were(start: Node, other: Node) -> None:
    """Every node, in the order of the rules, whatever the numbers are."""
    rules = Rules("start", {"start": start, "\ud800": other})
    packed = pack_rules(rules)
    assert packed.is_plain
    back = unpack_rules(packed.data)
    assert back == rules
    assert list(back.rules) == ["start", "\ud800"]


def test_shared_nodes_stay_shared() -> None:
    """A node that stands in many places is written once and read once: ten rows, not a thousand."""
    node: Node = Literal(b"a")
    for _ in range(10):
        node = Sequence((node, node))
    packed = pack_rules(Rules("start", {"start": node, "again": node}))
    assert len(packed.data) < 100
    back = unpack_rules(packed.data)
    assert back.rules["start"] is back.rules["again"]
    assert len(postorder(back.rules["start"])) == 11


def test_depth_is_no_matter() -> None:
    """Rules nested deeper than Python's stack go through."""
    node: Node = Literal(b"a")
    for _ in range(5000):
        node = Repeat(node, 0, 1)
    back = unpack_rules(pack_rules(Rules("start", {"start": node})).data)
    assert len(postorder(back.rules["start"])) == 5001


def test_a_graph_of_another_package_is_for_a_private_pipe_alone() -> None:
    """Its spec is pickled: our own child may send it, but it is neither stored nor read from a file."""
    graph = Graph(Chain(3), (Literal(b"x"),), 0)
    packed = pack_rules(Rules("start", {"start": graph}))
    assert not packed.is_plain
    assert unpack_rules(packed.data, is_private=True).rules["start"] == graph
    with pytest.raises(UnreadableRulesError, match="pickled"):
        unpack_rules(packed.data)


def test_a_graph_of_ours_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dataclasses of the grammars' own package are written as their fields, containers and big numbers too."""
    monkeypatch.setattr("palmette.runtime.stored_rules._CLASSES", Chain.__module__.partition(".")[0] + ".")
    states: list[Hashable] = [0, HUGE, None, "\ud800", b"b", (1, ("x", 2.5)), frozenset((1, 2)), (Chain(1), True)]
    spec = Chain(HUGE)
    rules = Rules("start", {str(i): Graph(spec, (Literal(b"x"),), state) for i, state in enumerate(states)})
    packed = pack_rules(rules)
    assert packed.is_plain
    assert unpack_rules(packed.data) == rules


@pytest.mark.parametrize(
    "table",
    [
        [FORMAT + 1, b"start", [], [], []],
        [FORMAT, b"start", [b"start"], [0], []],
        [FORMAT, b"start", [b"start"], [0], [[99]]],
        [FORMAT, b"start", [b"start"], [0], [[2, 5]]],
        [FORMAT, b"start", [b"start"], [], [[0, b"a"]]],
        [FORMAT, b"start", [b"start"], [0], [[8, ["object", "os:system"], 0]]],
        [FORMAT, b"start", [b"start"], [0], [[8, ["object", "palmette.constrained.rules:Rules", "a", None], 0]]],
        [FORMAT, b"start", [b"start"], [0], [[8, ["object", "palmette.constrained.rules:Rules"], 0]]],
        [FORMAT, b"start", [b"start"], [0], [[8, ["object", "palmette.constrained.nowhere:X"], 0]]],
        [FORMAT, b"start", [b"start"], [0], [[8, ["unknown"], 0]]],
        {},
        [],
    ],
)
def test_nonsense_is_refused(table: Any) -> None:
    """What this version did not write is one kind of error, whatever is wrong with it."""
    with pytest.raises(UnreadableRulesError):
        unpack_rules(msgspec.msgpack.encode(table))


@given(st.binary(max_size=40))
def test_bytes_that_are_no_rules_are_refused(data: bytes) -> None:
    """Any bytes at all are read without harm."""
    with pytest.raises(UnreadableRulesError):
        unpack_rules(data)
