"""A compiled program in a terminal, as `state.tree` shows one that has run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from palmette.constrained.grammar import Grammar
from palmette.runtime.program import Generate, Select

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from .compiled_program import CompiledProgram
    from .tree_view import TreeNode

_STYLES = {"gen": "green", "select": "magenta", "fork": "bold", "join": "bold", "template": "dim"}
_CUT = 200  # characters of a node's text that are shown at most


def rendered_shape(compiled: CompiledProgram) -> Iterator[RenderableType]:
    """What rich shows of a compiled program: its shape, its nodes, and where what is known ends."""
    from rich.text import Text as Line

    yield Line(f"{compiled.name}  {compiled.summary}", style="bold")
    yield _table(compiled)
    if compiled.ending:
        yield Line(compiled.ending, style="yellow")


def planned(node: Generate | Select) -> str:
    """What is asked of a call, in words: ``n=3, regex [1-5], max_tokens=4``, ``cat | dog``."""
    if isinstance(node, Select):
        return " | ".join(node.choices)
    constraint = [] if node.grammar is None else [_constraint(node.grammar)]
    several = [f"n={node.n}"] if node.n > 1 else []
    return ", ".join([*several, *constraint, f"max_tokens={node.params.max_tokens}"])


def _constraint(grammar: Grammar) -> str:
    return f"regex {grammar.source}" if grammar.kind == "regex" else grammar.kind


def _table(compiled: CompiledProgram) -> Table:
    from rich.table import Table
    from rich.text import Text as Line

    table = Table(box=None, padding=(0, 1), pad_edge=False, expand=True, header_style="dim")
    table.add_column("node", no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("tokens" if compiled.counts_tokens else "characters", "calls"):
        table.add_column(title, justify="right", no_wrap=True)
    for node in compiled.view.nodes:
        cell = Line(node.guide, style="dim").append(_described(node), style=_STYLES.get(node.kind, ""))
        table.add_row(cell, *map(Line, _numbers(compiled, node)))
    return table


def _described(node: TreeNode) -> str:
    """Kind, label and text in one line; line breaks and quotes in the text are escaped."""
    head = f"{node.kind} {node.label}".rstrip()
    if node.kind in ("fork", "join", "reference"):
        return head
    text = node.text if len(node.text) <= _CUT else f"{node.text[:_CUT]}…"
    return f"{head}  {text!r}" if node.kind in ("text", "template") else f"{head}  {_one_line(text)}"


def _one_line(text: str) -> str:
    return repr(text)[1:-1]


def _numbers(compiled: CompiledProgram, node: TreeNode) -> tuple[str, str]:
    """Size of a node's constant text, and how many calls have it in their prompts; empty where it has none."""
    shape = compiled.shapes[node.id]
    if not shape.characters:
        return ("", "")
    return (str(shape.characters if shape.tokens is None else shape.tokens), str(shape.calls))
