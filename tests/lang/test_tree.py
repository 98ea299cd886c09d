"""The request tree as a person and a test see it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import palmette as pt
from palmette.lang.source_line import SourceLine
from palmette.lang.tree import NodeRecord, ProgramTree
from palmette.runtime.program import Completion, Delta, Failed, Generate, Generated, Node, NodeUsage, Selected, Text
from palmette.runtime.sampling_params import SamplingParams

LINE = SourceLine("program.py", 3, "program")


@pt.function
def judge(s: pt.ProgramState) -> None:
    s += "One two three." + pt.gen("first")
    outer = s.fork(2)
    outer[0] += " a"
    inner = outer[0].fork(2)
    inner += pt.gen("x")
    outer[1] += " b" + pt.select("y", ["p", "q"])
    outer.join()
    s += " end\n"


def tree_of(*nodes: Node) -> ProgramTree:
    tree = ProgramTree()
    for node in nodes:
        tree.add(NodeRecord(node, 0, LINE, "x"))
    tree.check_invariants()
    return tree


def test_the_tree_is_drawn() -> None:
    """Branches stand below their fork, with every node's text and counts; the program's own branch goes on."""
    state = judge.run(backend=pt.MockBackend(["four", "five", "six", "q"]))
    lines = str(state.tree).splitlines()
    drawn = [line[: line.rindex("'") + 1] if "'" in line else line for line in lines[2:]]
    assert drawn == [
        "text  'One two three.'",
        "gen first  'four'",
        "fork 2",
        "├─ text  ' a'",
        "│  fork 2",
        f"│  ├─ gen x  '{state.tree.nodes[5].text}'",
        f"│  └─ gen x  '{state.tree.nodes[6].text}'",
        "└─ text  ' b'",
        f"   select y  '{state.tree.nodes[8].text}'",
        "join 2",
        "text  ' end\\n'",
    ]
    assert lines[0].startswith("judge  11 nodes, tokens: ")
    assert lines[1].split() == ["node", "computed", "reused", "forced", "ms"]
    assert lines[2].split()[-2:] == ["3", "9"]
    assert max(map(len, lines)) <= 100


def test_a_shared_prefix_is_computed_once() -> None:
    """Of sixteen branches, one computes the prefix and fifteen reuse it: the counts say so."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "word " * 600
        branches = s.fork(16)
        branches += lambda place: f"Case {place}:" + pt.gen("x")
        branches.join()

    tree = program.run(backend=pt.MockBackend({"": "yes"})).tree
    prefix = tree.nodes[0]
    assert (prefix.kind, prefix.computed) == ("text", prefix.reused // 15)
    assert tree.computed == prefix.computed + 16 * 3
    assert tree.reused == 15 * prefix.computed
    assert tree.forced == 0


def test_failed_and_long_nodes_are_drawn_in_one_line() -> None:
    """A failure is marked, and long text is cut."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "界" * 500 + pt.gen("x")

    view = program.run(backend=pt.MockBackend()).tree
    lines = str(view).splitlines()
    assert [node.status for node in view.nodes] == ["done", "failed"]
    assert lines[3].startswith("gen x  ''  (failed)")
    assert "…" in lines[2]


def test_rich_shows_the_tree() -> None:
    """The tree is a rich renderable, too."""
    view = judge.run(backend=pt.MockBackend(["1", "2", "q", "3"])).tree
    console = Console(width=60, file=io.StringIO())
    with console.capture() as capture:
        console.print(view)
    assert "├─ text  ' a'" in capture.get()


@given(st.lists(st.sampled_from(["delta", "done", "failed"]), max_size=6), st.text(max_size=6))
def test_a_node_ends_once(events: list[str], text: str) -> None:
    """Whatever a backend reports and in whatever order, a node ends at most once and its text is whole when it does."""
    tree = tree_of(Text(0, None, "a"), Generate(1, 0, SamplingParams()))
    record = tree.records[1]
    for event in events:
        was_done = record.done
        before = (record.text, record.result, record.failure)
        if event == "delta":
            tree.apply(Delta(1, text[len(record.text) :][:2]))
        elif event == "failed":
            tree.apply(Failed(1, "RequestError", "no"))
        else:
            tree.apply(Generated(1, (_completion(text),), (NodeUsage(0, computed=2),), 0.5))
        tree.check_invariants()
        if was_done:
            assert (record.text, record.result, record.failure) == before
        if record.result is not None:
            assert record.text == text
            assert tree.records[0].computed == 2


def test_an_error_of_an_unknown_kind_is_an_engine_error() -> None:
    """A backend's error that is none of Palmette's keeps its name in the message."""
    tree = tree_of(Generate(0, None, SamplingParams()))
    tree.apply(Failed(0, "OverflowError", "too much"))
    error = tree.error_of(0)
    assert isinstance(error.__cause__, pt.EngineError)
    assert "OverflowError: too much" in str(error)
    assert tree.first_failed == 0


def test_a_choice_for_a_node_that_is_no_select_is_refused() -> None:
    """A backend that mixes nodes up is found out."""
    with pytest.raises(TypeError, match="which is no select"):
        tree_of(Generate(0, None, SamplingParams())).apply(Selected(0, 0))


def _completion(text: str) -> Completion:
    return Completion(
        text=text, token_ids=(), finish_reason="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=1
    )
