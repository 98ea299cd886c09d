"""A program's tree as HTML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

import palmette as pt
from palmette.lang.notebook import MAX_CHARS, MAX_NODES, tree_html
from palmette.lang.tree_view import TreeNode, TreeView


def node(place: int, text: str = "x", **fields: object) -> TreeNode:
    values: dict[str, object] = {
        "id": place,
        "parent": place - 1 if place else None,
        "branch": 0,
        "guide": "",
        "kind": "text",
        "label": "",
        "text": text,
        "status": "done",
        "computed": 1,
        "reused": 0,
        "forced": 0,
        "elapsed_ms": None,
    }
    return TreeNode(**{**values, **fields})  # type: ignore[arg-type]


def parsed(view: TreeView) -> ET.Element:
    """The HTML as XML, which it is, too; without the style."""
    html = tree_html(view)
    html.encode()
    root = ET.fromstring(html)
    style = root.find("style")
    assert style is not None
    root.remove(style)
    return root


def text_of(element: ET.Element) -> str:
    return "".join(element.itertext())


def by_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in root.iter() if name in element.get("class", "").split()]


def test_a_program_is_shown_with_its_answers() -> None:
    """Answers carry their variable's name and counts; branches stand in their fork; the program's branch goes on."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "One." + pt.gen("first")
        outer = s.fork(2)
        inner = outer[0].fork(2)
        inner += "in" + pt.gen("x")
        outer[1] += pt.select("y", ["p", "q"])
        outer.join()
        s += " end"

    state = program.run(backend=pt.MockBackend({"": "two"}))
    root = parsed(state.tree)
    assert state._repr_html_() == state.tree._repr_html_() == tree_html(state.tree)
    (first, *_) = by_class(root, "gen")
    assert text_of(first) == "firsttwo"
    assert [text_of(element) for element in by_class(root, "k")] == ["fork 2", "fork 2", "join 2"]
    outer, inner = by_class(root, "f")
    assert [len(list(fork)) for fork in (outer, inner)] == [2, 2]
    assert text_of(by_class(list(outer)[1], "select")[0]).startswith("y")
    trunk = root.findall("div")[0]
    assert text_of(list(trunk)[-1]) == " end"
    assert f"{state.tree.computed} computed" in text_of(root.findall("header")[0])


def test_a_failure_is_shown_in_its_place() -> None:
    """The error stands after the node that failed, and the header counts it."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "Go." + pt.gen("x")

    root = parsed(program.run(backend=pt.MockBackend()).tree)
    assert len(by_class(root, "failed")) == 1
    assert "Error: " in text_of(by_class(root, "e")[0])
    assert "1 failed" in text_of(root.findall("header")[0])


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", "\"'><img src=x onerror=y>", "]]>&amp;<!--", "\x00\x1b[31m"]
)
def test_hostile_text_stays_text(hostile: str) -> None:
    """Whatever texts, names and errors hold, no element or attribute comes of it."""
    fields = {"kind": "gen", "label": hostile, "status": "failed", "error": hostile}
    view = TreeView(hostile, (node(0, hostile), node(1, hostile * 100, **fields)))
    root = parsed(view)
    assert {element.tag for element in root.iter()} <= {"div", "header", "b", "small", "span", "details", "summary"}
    assert {name for element in root.iter() for name in element.attrib} <= {"class", "title"}
    shown = hostile.replace("\x00", "␀").replace("\x1b", "␛")
    assert text_of(root).count(shown) >= 103


@given(st.text(), st.text(max_size=5))
def test_any_text_is_well_formed_and_kept(text: str, label: str) -> None:
    """Line breaks, every script, control characters and lone surrogates make well-formed HTML of the same length."""
    root = parsed(TreeView("p", (node(0, text), node(1, text, kind="gen", label=label))))
    for shown, given_text in zip(by_class(root, "text"), [text] if text else [], strict=True):
        assert len(text_of(shown)) == len(given_text)
        assert all(a == b or not b.isprintable() for a, b in zip(text_of(shown), given_text, strict=True))
    (answer,) = by_class(root, "gen")
    assert len(text_of(answer)) == len(label or "gen") + len(text)


def test_long_texts_are_folded_and_cut() -> None:
    """A long text shows its beginning and opens; one far too long is cut and says so."""
    root = parsed(TreeView("p", (node(0, "a" * 1000), node(1, "b" * (MAX_CHARS + 5), kind="gen", label="x"))))
    summaries = [text_of(element) for element in root.iter("summary")]
    assert summaries == [f"{'a' * 160}… 1000 characters", f"x{'b' * 160}… {MAX_CHARS + 5} characters"]
    assert text_of(root).count("b") >= MAX_CHARS
    assert "… (5 more characters)" in text_of(root)


def test_large_and_deep_trees_are_shown() -> None:
    """A thousand forks inside each other are nested without recursion; past the limit of nodes the header says so."""
    deep = [node(place, kind="fork", label="1", branch=place) for place in range(1000)]
    assert tree_html(TreeView("p", tuple(deep))).count('class="f"') == 999
    root = parsed(TreeView("p", tuple(node(place) for place in range(MAX_NODES + 1))))
    assert text_of(root).count("x") == MAX_NODES
    assert f"the first {MAX_NODES} nodes are shown" in text_of(root.findall("header")[0])


def test_browsers_read_it_as_it_is_written() -> None:
    """HTML's own parser meets every closing tag where one is due."""
    open_tags: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Parser().feed(tree_html(TreeView("<p>", (node(0), node(1, "y" * 700)))))
    assert open_tags == []
