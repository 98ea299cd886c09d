"""`state.tree`: the request tree at one moment, to print and to look into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from palmette.runtime.program import Fork, Generate, Generated, Join, Node, Reference, Select, Text

from .notebook import tree_html
from .segments import Segment, answer_segments, given_segments, reused_length
from .tree import ROOT_BRANCH, NodeRecord, ProgramTree
from .tree_print import Shown, rendered

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


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
        status: done, running or failed; planned in a program that is only compiled.
        computed, reused, forced: tokens of the node, summed over all requests that went through it.
        elapsed_ms: from when it could start to its end; None for nodes that take no time of their own.
        error: of a failed node: the kind of error, and what it says.
        reused_chars: of a text: about so many of its first characters were in the radix cache before the program came.
        forced_ranges: of a gen: the characters that its grammar forced, as (begin, end) in order.
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
    reused_chars: int = 0
    forced_ranges: tuple[tuple[int, int], ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The text in parts of one kind each: prompt, reused, generated, forced or chosen."""
        if self.kind == "gen":
            return answer_segments(self.text, self.forced_ranges)
        if self.kind == "select":
            return (Segment("chosen", self.text),) if self.text else ()
        return given_segments(self.text, self.reused_chars)


@dataclass(frozen=True, slots=True)
class TreeView(Shown):
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

    def _repr_html_(self) -> str:
        """The tree for notebooks."""
        return tree_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The tree for `rich.print`, as wide as the terminal."""
        yield from rendered(self, legend=console.color_system is not None and not console.no_color)


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
        reused_chars=_reused_chars(record),
        forced_ranges=record.result.completions[0].forced_ranges if isinstance(record.result, Generated) else (),
    )


def _reused_chars(record: NodeRecord) -> int:
    if isinstance(record.node, Generate | Select):
        return 0
    return reused_length(record.text, record.tokens - record.first_computed, record.tokens)


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
