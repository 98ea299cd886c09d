"""`state.trace()`: a run as it went, to save for a trace viewer or as a page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from palmette.runtime.program import Completion, Generated, Join, Node, Reference, Select, Selected, Timings

from .source_line import SourceLine
from .tree import NodeRecord, ProgramTree
from .tree_view import TreeNode, TreeView, view_of


@dataclass(frozen=True, slots=True)
class TracedNode:
    """One node of a trace.

    Attributes:
        view: the node as the tree shows it.
        line: the program's line that appended it.
        result: the event that ended a gen or a select well.
        choices: of a select.
        source: the node that a reference repeats.
        ends: the last nodes of the branches that a join ends.
    """

    view: TreeNode
    line: SourceLine
    result: Generated | Selected | None = None
    choices: tuple[str, ...] = ()
    source: int | None = None
    ends: tuple[int, ...] = ()

    @property
    def answers(self) -> tuple[Completion, ...]:
        """The answers of a gen that is done."""
        return self.result.completions if isinstance(self.result, Generated) else ()

    @property
    def timings(self) -> Timings | None:
        """When a select or the first answer of a gen was made."""
        if isinstance(self.result, Selected):
            return self.result.timings
        return self.answers[0].timings if self.answers else None

    @property
    def title(self) -> str:
        """The node as a person would name it: ``gen grade``."""
        return f"{self.view.kind} {self.view.label}".rstrip()


@dataclass(frozen=True, slots=True)
class RunTrace:
    """A run as it went: its request tree with texts, tokens and timings, as far as they are known.

    Log-probabilities are there where the run asked for them with their text:
    ``program.run(..., logprobs=3, return_text_in_logprobs=True)``. `palmette run --trace` does.

    Attributes:
        name: the program's name.
        view: the tree as `ProgramState.tree` shows it.
        nodes: all nodes in the order of their ids.
        model: the model's name.
    """

    name: str
    view: TreeView
    nodes: tuple[TracedNode, ...] = field(repr=False)
    model: str = ""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace to a file, of the kind that its name ends in; a file that is there is replaced.

        ``.json`` is for chrome://tracing and ui.perfetto.dev: a track a branch, with what each call waited for and did.
        ``.html`` is one page for a browser, that needs nothing else: the tree with its texts in colours and
        log-probabilities by token, and its timeline.

        Returns:
            The file's path.

        Raises:
            ValueError: the name ends in neither.
            OSError: the file cannot be written.
        """
        file = Path(path)
        if file.suffix not in (".json", ".html"):
            raise ValueError(f"a trace is saved as .json (for trace viewers) or .html (a page), not as {file.name!r}")
        text = self.events_json() if file.suffix == ".json" else self.html()
        file.write_text(text, encoding="utf-8", newline="\n")
        return file

    def events_json(self) -> str:
        """The trace in the Trace Event Format, as one JSON object."""
        from .trace_events import trace_json

        return trace_json(self)

    def html(self) -> str:
        """The trace as one HTML page."""
        from .trace_page import trace_page

        return trace_page(self)

    def timed(self) -> Iterator[tuple[TracedNode, Timings]]:
        """The nodes with timings, and these."""
        return ((node, node.timings) for node in self.nodes if node.timings is not None)


def trace_of(name: str, tree: ProgramTree, model: str) -> RunTrace:
    """The trace of a tree as it is now."""
    view = view_of(name, tree)
    shown = {node.id: node for node in view.nodes}
    return RunTrace(name, view, tuple(_traced(record, shown[record.node.id]) for record in tree.records), model)


def _traced(record: NodeRecord, view: TreeNode) -> TracedNode:
    node: Node = record.node
    return TracedNode(
        view=view,
        line=record.line,
        result=record.result,
        choices=node.choices if isinstance(node, Select) else (),
        source=node.source if isinstance(node, Reference) else None,
        ends=node.ends if isinstance(node, Join) else (),
    )
