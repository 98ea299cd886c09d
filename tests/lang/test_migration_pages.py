"""The pages for users of Guidance, Outlines, LMQL and DSPy: our code runs, and the names on both sides exist."""

from __future__ import annotations

import ast
import importlib
import linecache
import operator
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import palmette as pt

PAGES = Path(__file__).parents[2] / "docs" / "migration"
LIBRARIES = ("guidance", "outlines", "lmql", "dspy")
BLOCK = re.compile(r"^```python( \w+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = 25


def blocks(library: str, *, theirs: bool) -> list[tuple[int, str]]:
    """The blocks of a page that are written for the library, or for Palmette, each with the lines before it."""
    text = (PAGES / f"{library}.md").read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)), found[2])
        for found in BLOCK.finditer(text)
        if (found[1] or "").strip() == (library if theirs else "")
    ]


def table(library: str) -> list[list[str]]:
    """The rows of the page's table of names."""
    section = (PAGES / f"{library}.md").read_text(encoding="utf-8").partition("## Names\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in row.removeprefix("|").removesuffix("|").split("|")] for row in rows]


@pytest.mark.parametrize("library", LIBRARIES)
def test_our_side_of_a_page_runs(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks run in order, in one namespace; a failure points at the page's own line."""
    page = PAGES / f"{library}.md"
    text = page.read_text(encoding="utf-8")
    linecache.cache[str(page)] = (len(text), None, text.splitlines(keepends=True), str(page))
    module = ModuleType(f"{library}_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    ours = blocks(library, theirs=False)
    for lines_before, source in ours:
        exec(compile("\n" * lines_before + source, str(page), "exec", dont_inherit=True), vars(module))
    assert sum("assert " in source for _, source in ours) == len(ours) >= 5


@pytest.mark.parametrize("library", LIBRARIES)
def test_their_side_of_a_page_can_be_read(library: str) -> None:
    """It is Python, as short as ours, and names nothing that the library lacks, where that is installed."""
    theirs = blocks(library, theirs=True)
    assert len(theirs) >= 5
    for _, source in [*theirs, *blocks(library, theirs=False)]:
        assert len([line for line in source.splitlines() if line.strip()]) <= MOST_LINES
    if find_spec(library) is None:
        for _, source in theirs:
            ast.parse(source)
        return
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else DSPy's import asks the network for prices
    found = importlib.import_module(library)
    for _, source in theirs:
        for name in names_of(ast.parse(source), library):
            operator.attrgetter(name)(found)


def names_of(tree: ast.Module, library: str) -> list[str]:
    """What a block takes from the library: what it imports, and attributes of the module."""
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    imported = [
        ".".join([*node.module.split(".")[1:], alias.name])
        for node in taken
        if node.module and node.module.partition(".")[0] == library
        for alias in node.names
    ]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return imported + [
        node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == library
    ]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_names_of_a_page_exist(library: str) -> None:
    """Every name of ours in the table is there, and a row without one says what to do."""
    rows = table(library)
    assert len(rows) >= 15
    for row in rows:
        assert len(row) == 3, row
        names = re.findall(r"`pt\.([\w.]+)`", row[1])
        assert row[1] or row[2], row
        for name in names:
            operator.attrgetter(name)(pt)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_page_says_what_is_lost(library: str) -> None:
    """It ends with it."""
    sections = re.findall(r"^## (.*)$", (PAGES / f"{library}.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[-2:] == ["Names", "What you lose"]
