"""A request tree as HTML, for notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .segments import SEGMENT_KINDS, Segment, cut
from .tree import ROOT_BRANCH

if TYPE_CHECKING:
    from .tree_view import TreeNode, TreeView

MAX_NODES = 2000
MAX_CHARS = 20_000
"""Longer trees and texts are cut, and say so: a notebook keeps what it shows."""

_COLLAPSED = 600  # characters from which on a text is shown folded
_BEGINNING = 160  # characters of a folded text that are shown

# Translucent colours and the notebook's own text colour suit light and dark themes alike.
_STYLE = """
.palmette{font-size:13px;line-height:1.5;margin:.3em 0;border:1px solid rgba(128,128,128,.35);border-radius:6px}
.palmette header{padding:.3em .8em;border-bottom:1px solid rgba(128,128,128,.35);font-size:12px}
.palmette header small,.palmette .n,.palmette .k{opacity:.7}
.palmette .b{padding:.4em .8em;white-space:pre-wrap;overflow-wrap:anywhere;min-width:0}
.palmette .f{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,17em),1fr));gap:.5em;margin:.3em 0}
.palmette .f>.b{border-left:3px solid rgba(128,128,128,.45);background:rgba(128,128,128,.06);border-radius:4px}
.palmette .k{display:block;font-size:11px;white-space:normal}
.palmette span,.palmette details{unicode-bidi:isolate}
.palmette .template{opacity:.5}
.palmette .generated,.palmette .forced,.palmette .chosen,.palmette .reused{border-radius:3px;padding:.05em 0}
.palmette .generated{background:rgba(46,160,67,.22)}
.palmette .forced{background:rgba(219,154,4,.28)}
.palmette .chosen{background:rgba(163,113,247,.26)}
.palmette .reused{background:rgba(56,139,253,.18)}
.palmette .reference{border-bottom:1px dashed}
.palmette .l{float:right}
.palmette .l span{padding:.05em .4em;margin-left:.4em}
.palmette .v{font-size:11px;font-weight:600;margin:0 .4em}
.palmette .n{font-size:10px;margin-left:.4em}
.palmette .failed{background:rgba(248,81,73,.16);outline:1px solid rgba(248,81,73,.6)}
.palmette .e{font-weight:600;white-space:pre-wrap}
.palmette summary{cursor:pointer}
.palmette details[open]>summary .c{display:none}
""".strip()

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
_UNSHOWABLE = re.compile("[\x80-\x9f\ud800-\udfff\ufffe\uffff]")


def tree_html(view: TreeView, summary: str = "") -> str:
    """The tree as one HTML element with its own style: no script, nothing from elsewhere, all text escaped.

    It reads as the program's text does: answers are coloured and carry their variable's name and token counts, the
    branches of a fork stand side by side, failed nodes show their error, long texts are folded.

    Args:
        summary: stands above it in the place of its counts.
    """
    header = _header(view.name, summary) if summary else _header(view.name, _summary(view), _LEGEND)
    return "".join(_pieces(view, header))


def _pieces(view: TreeView, header: str) -> Iterator[str]:
    nodes = view.nodes[:MAX_NODES]
    nesting = _Nesting({node.id: node.branch for node in nodes})
    yield f'<div class="palmette"><style>{_STYLE}</style>{header}<div class="b">'
    for node in nodes:
        yield from nesting.tags_before(node)
        yield _node_html(node)
    yield "</div>" * (len(nesting.open) + 1)


class _Nesting:
    """The elements of branches and forks that are open, the outermost first."""

    def __init__(self, branch_of: dict[int, int]) -> None:
        self._branch_of = branch_of
        self.open: list[tuple[str, int]] = [("branch", ROOT_BRANCH)]

    def tags_before(self, node: TreeNode) -> Iterator[str]:
        """What closes and opens so that `node` stands in its branch, and a new branch in its fork."""
        branch = ("branch", node.branch)
        if self.open[-1] == branch:
            return
        if branch in self.open:
            yield from self._close_to(branch)
            return
        fork_id = -1 if node.parent is None else node.parent
        fork = ("fork", fork_id)
        if fork in self.open:
            yield from self._close_to(fork)
        else:
            yield from self._close_to(("branch", self._branch_of[fork_id]))
            self.open.append(fork)
            yield '<div class="f">'
        self.open.append(branch)
        yield '<div class="b">'

    def _close_to(self, element: tuple[str, int]) -> Iterator[str]:
        while self.open[-1] != element:
            self.open.pop()
            yield "</div>"


_LEGEND = "".join(f'<span class="{kind}" title="{meaning}">{kind}</span>' for kind, meaning in SEGMENT_KINDS.items())


def _header(name: str, summary: str, legend: str = "") -> str:
    legend = f'<small class="l">{legend}</small>' if legend else ""
    return f"<header>{legend}<b>{_escaped(name)}</b> <small>{_escaped(summary)}</small></header>"


def _summary(view: TreeView) -> str:
    counts = [f"{len(view.nodes)} nodes"]
    for status in ("running", "failed"):
        there = sum(node.status == status for node in view.nodes)
        counts += [f"{there} {status}"] if there else []
    counts.append(f"tokens: {view.computed} computed, {view.reused} reused, {view.forced} forced")
    if len(view.nodes) > MAX_NODES:
        counts.append(f"the first {MAX_NODES} nodes are shown")
    return " · ".join(counts)


def _node_html(node: TreeNode) -> str:
    """One node; forks and joins are a line of their own, everything else reads as text."""
    if node.kind in ("fork", "join"):
        return f'<span class="k">{node.kind} {_escaped(node.label)}</span>'
    if node.kind in ("text", "template"):
        return _text_html(node.segments, node.kind, f"{node.computed} computed, {node.reused} reused", "")
    classes = f"{node.kind} {node.status}"
    label = f'<span class="v">{_escaped(node.label or node.kind)}</span>'
    return _text_html(node.segments, classes, f"{node.kind}, {node.status}", label) + _after(node)


def _text_html(segments: Sequence[Segment], classes: str, title: str, label: str) -> str:
    """Text after `label`; folded where it is long."""
    length = sum(len(text) for _, text in segments)
    more = f"… ({length - MAX_CHARS} more characters)" if length > MAX_CHARS else ""
    body = _coloured(cut(segments, MAX_CHARS)) + more
    attributes = f'class="{classes}" title="{title}"'
    if length <= _COLLAPSED:
        return f"<span {attributes}>{label}{body}</span>" if body or label else ""
    beginning = f'<span class="c">{_coloured(cut(segments, _BEGINNING))}… </span><small>{length} characters</small>'
    return f"<details {attributes}><summary>{label}{beginning}</summary>{body}</details>"


def _coloured(segments: Sequence[Segment]) -> str:
    return "".join(
        _escaped(text) if kind == "prompt" else f'<span class="{kind}">{_escaped(text)}</span>'
        for kind, text in segments
    )


def _after(node: TreeNode) -> str:
    """An answer's counts, and the error of a node that failed."""
    counts = [f"{node.computed} computed", f"{node.reused} reused", f"{node.forced} forced"]
    shown = [count for count in counts if not count.startswith("0 ")]
    shown += [] if node.elapsed_ms is None else [f"{node.elapsed_ms:.1f} ms"]
    if node.status == "running":
        shown.append("running")
    error = f' <span class="e">{_escaped(node.error[:MAX_CHARS])}</span>' if node.error else ""
    return (f'<span class="n">{" · ".join(shown)}</span>' if shown else "") + error


def _escaped(text: str) -> str:
    """`text` for HTML, in elements and attributes alike; control characters are shown by their symbols."""
    return html.escape(_UNSHOWABLE.sub("\ufffd", text.translate(_CONTROLS)))
