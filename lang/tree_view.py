"""`state.tree`: the request tree at one moment, to print and to look into."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from palmette.runtime.program import Fork, Generate, Join, Node, Reference, Select, Text

from .notebook import tree_html
from .tree import ROOT_BRANCH, NodeRecord, ProgramTree

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

PLAIN_WIDTH = 100
_CUT = 200  # characters of a node's text that a view keeps to show; a terminal shows fewer


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node of a view.

    Attributes:
        id, parent: as on the wire; `parent` is None at the root.
        branch: 0 is the program's own branch; forks count on from it.
        guide: what is drawn before it to show its branch.
        kind: text, template, gen, select, reference, fork or join.
        label: the variable's name, or the number of branches.
        text: the node's text so far.
        status: done, running or failed.
        computed, reused, forced: tokens of the node, summed over all requests that went through it.
        elapsed_ms: from when it could start to its end; None for nodes that take no time of their own.
        error: of a failed node: the kind of error, and what it says.
    """

    id: int
    parent: int | None
    branch: int
    guide: str
    kind: str
    label: str
    text: str
    status: str
    computed: int
    reused: int
    forced: int
    elapsed_ms: float | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TreeView:
    """All nodes of a program in the order to print them: a fork's branches stand below it, indented.

    Tokens are those that requests have computed, found in the radix cache, or were forced to take by their grammar. A
    prefix of 100 tokens under a fork of three shows 100 computed and 200 reused.
    """

    name: str
    nodes: tuple[TreeNode, ...]

    @property
    def computed(self) -> int:
        return sum(node.computed for node in self.nodes)

    @property
    def reused(self) -> int:
        return sum(node.reused for node in self.nodes)

    @property
    def forced(self) -> int:
        return sum(node.forced for node in self.nodes)

    def __str__(self) -> str:
        """The tree as plain text, at most 100 columns wide."""
        from rich.console import Console

        console = Console(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def _repr_html_(self) -> str:
        """The tree for notebooks."""
        return tree_html(self)

    def __rich__(self) -> Group:
        """The tree for `rich.print`, as wide as the terminal."""
        from rich.console import Group
        from rich.text import Text as Line

        totals = f"{self.name}  {len(self.nodes)} nodes, tokens: {self.computed} computed, {self.reused} reused, "
        return Group(Line(f"{totals}{self.forced} forced", style="bold"), self._table())

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text as Line

        table = Table(box=None, padding=(0, 1), pad_edge=False, expand=True, header_style="dim")
        table.add_column("node", no_wrap=True, overflow="ellipsis", ratio=1)
        for title in ("computed", "reused", "forced", "ms"):
            table.add_column(title, justify="right", no_wrap=True)
        for node in self.nodes:
            cell = Line(node.guide, style="dim").append(_describe(node), style=_STYLES.get(node.kind, ""))
            table.add_row(cell, *(Line(number) for number in _numbers(node)))
        return table


_STYLES = {"gen": "green", "select": "cyan", "fork": "bold", "join": "bold", "template": "dim"}


@dataclass(slots=True)
class _Branch:
    """A branch on its way into a view: its records that are left, and the guides of the next one and of those after."""

    records: Iterator[NodeRecord]
    guide: str
    rest: str


def view_of(name: str, tree: ProgramTree) -> TreeView:
    """A view of the tree as it is now."""
    by_branch: dict[int, list[NodeRecord]] = {}
    for record in tree.records:
        by_branch.setdefault(record.branch, []).append(record)
    nodes: list[TreeNode] = []
    stack = [_Branch(iter(by_branch.get(ROOT_BRANCH, ())), "", "")]
    while stack:
        branch = stack[-1]
        next_record = next(branch.records, None)
        if next_record is None:
            stack.pop()
            continue
        nodes.append(_tree_node(next_record, branch.guide))
        branch.guide = branch.rest
        children = [by_branch[child] for child in tree.fork_branches.get(next_record.node.id, ()) if child in by_branch]
        stack.extend(reversed(_indented(children, branch.rest)))
    return TreeView(name, tuple(nodes))


def _indented(children: list[list[NodeRecord]], guide: str) -> list[_Branch]:
    """The branches of one fork, one below the other; the line beside them ends at the last one."""
    last = len(children) - 1
    return [
        _Branch(iter(records), guide + ("└─ " if place == last else "├─ "), guide + ("   " if place == last else "│  "))
        for place, records in enumerate(children)
    ]


def _tree_node(record: NodeRecord, guide: str) -> TreeNode:
    status = "failed" if record.failure else "done" if record.done else "running"
    return TreeNode(
        id=record.node.id,
        parent=record.node.parent,
        branch=record.branch,
        guide=guide,
        kind=_kind(record.node),
        label=_label(record),
        text=record.text,
        status=status,
        computed=record.computed,
        reused=record.reused,
        forced=record.forced,
        elapsed_ms=1000 * record.result.elapsed_s if record.result else None,
        error=f"{type(record.failure).__name__}: {record.failure}" if record.failure else None,
    )


_KINDS = {Generate: "gen", Select: "select", Fork: "fork", Join: "join", Reference: "reference"}


def _kind(node: Node) -> str:
    if isinstance(node, Text):
        return "template" if node.template else "text"
    return _KINDS[type(node)]


def _label(record: NodeRecord) -> str:
    node = record.node
    if isinstance(node, Fork):
        return str(node.branches)
    if isinstance(node, Join):
        return str(len(node.ends))
    return record.name or ""


def _describe(node: TreeNode) -> str:
    """Kind, label and text in one line; line breaks and quotes in the text are escaped."""
    head = f"{node.kind} {node.label}".rstrip()
    if node.kind in ("fork", "join"):
        return head
    text = node.text if len(node.text) <= _CUT else f"{node.text[:_CUT]}…"
    state = "" if node.status == "done" else f"  ({node.status})"
    return f"{head}  {text!r}{state}"


def _numbers(node: TreeNode) -> tuple[str, str, str, str]:
    """The four columns of numbers; empty where a node cannot have them."""
    if node.kind in ("fork", "join"):
        return ("", "", "", "")
    elapsed = "" if node.elapsed_ms is None else f"{node.elapsed_ms:.1f}"
    return (str(node.computed), str(node.reused), str(node.forced) if node.kind == "gen" else "", elapsed)
