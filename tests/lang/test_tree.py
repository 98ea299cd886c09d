"""The request tree as a person and a test see it."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import palmette as pt
from palmette.lang.source_line import SourceLine
from palmette.lang.tree import NodeRecord, ProgramTree
from palmette.lang.tree_print import described
from palmette.lang.tree_view import TreeNode, TreeView, view_of
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
    assert prefix.segments == (("prompt", prefix.text),)  # the cache had nothing of it before


@pytest.mark.parametrize(("computed", "reused", "kinds"), [(30, 0, "p"), (10, 20, "p"), (0, 30, "r"), (5, 25, "rp")])
def test_what_the_cache_had_before_is_told_apart(computed: int, reused: int, kinds: str) -> None:
    """Of three requests that share a prompt of ten tokens, two reuse what the first computed; that is no old text."""
    tree = tree_of(Text(0, None, "one two three four five"), Generate(1, 0, SamplingParams(), n=3))
    usage = (NodeUsage(0, computed=computed, reused=reused), NodeUsage(1, computed=9))
    answers = tuple(msgspec.structs.replace(_completion("x"), prompt_tokens=10) for _ in range(3))
    tree.apply(Generated(1, answers, usage))
    assert "".join(kind[0] for kind, _ in view_of("p", tree).nodes[0].segments) == kinds


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


COLOURED = TreeView(
    "p",
    (
        TreeNode(0, None, 0, "", "text", "", "old and new", "done", 2, 3, 0, None, reused_chars=3),
        TreeNode(1, 0, 0, "", "gen", "x", "{'a': \"1\"}", "done", 2, 0, 4, 5.0, forced_ranges=((0, 6), (9, 10))),
        TreeNode(2, 1, 0, "", "select", "y", "yes", "done", 1, 0, 0, 2.0),
        TreeNode(3, 2, 0, "", "gen", "z", "", "failed", 0, 0, 0, None, "RequestError: no"),
    ),
)


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def test_a_terminal_shows_colours(terminal: Terminal) -> None:
    """Reused, generated, forced and chosen text, and failures, have colours of their own, which the last line names."""
    COLOURED.show(terminal)
    written = terminal.getvalue()
    blue, green, yellow, magenta = (f"\x1b[{code}m" for code in (34, 32, 33, 35))
    for coloured in (f"{blue}old", f"{yellow}{{\\'a\\': ", f'{green}"1"', f"{yellow}}}", f"{magenta}yes"):
        assert coloured in written
    assert "\x1b[1;31m" in written
    plain = re.sub("\x1b\\[[0-9;]*m", "", written)
    assert plain.splitlines()[-1].split() == ["prompt", "reused", "generated", "forced", "chosen"]
    assert "gen x  '{\\'a\\': \"1\"}'" in plain


def test_no_color_is_honoured(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR the terminal shows no colours, and no line that explains them."""
    monkeypatch.setenv("NO_COLOR", "1")
    COLOURED.show(terminal)
    assert not re.search("\x1b\\[(1;)?3[0-9]m", terminal.getvalue())
    assert "chosen" not in terminal.getvalue()


def test_files_and_pipes_get_plain_text(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no terminal gets what `str` gives, and that is plain wherever it goes."""
    COLOURED.show()
    print(COLOURED, file=terminal)
    assert capsys.readouterr().out == terminal.getvalue() == f"{COLOURED}\n"
    assert "\x1b" not in str(COLOURED)


@given(st.text(max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_coloured_text_reads_as_it_does_without_colours(text: str, begin: int, length: int) -> None:
    """However a text is cut into colours, quotes and escapes are those of the whole."""
    ranges = ((begin, begin + length),) if begin + length <= len(text) else ()
    node = TreeNode(0, None, 0, "", "gen", "", text, "done", 0, 0, 0, None, forced_ranges=ranges)
    assert described(node).plain == f"gen  {text!r}"


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
