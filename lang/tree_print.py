"""A request tree in a terminal: in colours where it has them, else as plain text."""

from __future__ import annotations

import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from .segments import SegmentKind, cut

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text as Line

    from .tree_view import TreeNode, TreeView

PLAIN_WIDTH = 100
_CUT = 200  # characters of a node's text that are written; a terminal shows fewer

_SEGMENT_STYLES: dict[SegmentKind, str] = {
    "prompt": "",
    "reused": "blue",
    "generated": "green",
    "forced": "yellow",
    "chosen": "magenta",
}
_NODE_STYLES = {"fork": "bold", "join": "bold", "template": "dim"}
_STATUS_STYLES = {"failed": "bold red", "running": "cyan", "planned": "dim"}


class Shown(ABC):
    """A tree that can be printed: by `print`, by rich, or by itself."""

    __slots__ = ()

    def __str__(self) -> str:
        """The tree as plain text, at most 100 columns wide, wherever it is written to; `show` has colours."""
        from rich.console import Console

        console = Console(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def show(self, file: TextIO | None = None) -> None:
        """Print the tree: in colours and as wide as the terminal, or where `file` is none, as plain text.

        Args:
            file: None is standard output. ``NO_COLOR`` in the environment is honoured.
        """
        from rich.console import Console

        console = Console(file=sys.stdout if file is None else file)
        if console.is_terminal:
            console.print(self)
        else:
            print(self, file=file)

    @abstractmethod
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The tree for `rich.print`, as wide as the terminal."""


def rendered(view: TreeView, *, legend: bool) -> Iterator[RenderableType]:
    """What rich shows of a tree: its totals, its nodes, and what the colours mean."""
    from rich.text import Text as Line

    totals = f"{view.name}  {len(view.nodes)} nodes, tokens: {view.computed} computed, {view.reused} reused, "
    yield Line(f"{totals}{view.forced} forced", style="bold")
    yield _table(view)
    if legend:
        yield Line("  ").join(Line(kind, style=style) for kind, style in _SEGMENT_STYLES.items())


def _table(view: TreeView) -> Table:
    from rich.table import Table
    from rich.text import Text as Line

    table = Table(box=None, padding=(0, 1), pad_edge=False, expand=True, header_style="dim")
    table.add_column("node", no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("computed", "reused", "forced", "ms"):
        table.add_column(title, justify="right", no_wrap=True)
    for node in view.nodes:
        table.add_row(Line().append(node.guide, style="dim").append_text(described(node)), *map(Line, _numbers(node)))
    return table


def described(node: TreeNode) -> Line:
    """Kind, label and text in one line; line breaks and quotes in the text are escaped."""
    from rich.text import Text as Line

    line = Line(f"{node.kind} {node.label}".rstrip(), style=_NODE_STYLES.get(node.kind, ""))
    if node.kind in ("fork", "join"):
        return line
    shown = node.text if len(node.text) <= _CUT else f"{node.text[:_CUT]}…"
    quote = repr(shown)[0]
    line.append(f"  {quote}")
    for kind, text in cut(node.segments, _CUT):
        line.append(_escaped(text, quote), style=_SEGMENT_STYLES[kind])
    line.append(("…" if shown != node.text else "") + quote)
    if node.status != "done":
        line.append(f"  ({node.status})", style=_STATUS_STYLES[node.status])
    return line


def _escaped(text: str, quote: str) -> str:
    """The text as `repr` writes it, as a part of a longer one that stands between these quotes."""
    written = repr(text)
    return written[1:-1].replace(quote, f"\\{quote}") if written[0] != quote else written[1:-1]


def _numbers(node: TreeNode) -> tuple[str, str, str, str]:
    """The four columns of numbers; empty where a node cannot have them."""
    if node.kind in ("fork", "join"):
        return ("", "", "", "")
    elapsed = "" if node.elapsed_ms is None else f"{node.elapsed_ms:.1f}"
    return (str(node.computed), str(node.reused), str(node.forced) if node.kind == "gen" else "", elapsed)
