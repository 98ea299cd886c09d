"""What led to what in a run: which calls a call had to wait for, beside the one before it on its branch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .trace import RunTrace, TracedNode

FlowKind = Literal["fork", "join", "reference"]


class Flow(NamedTuple):
    """An arrow from one call to another, by the ids of their nodes.

    A fork leads from the last call before it to the first of each branch; a join from the last call of each branch to
    the first after it, where that came later, as a join waits for nothing; a reference from the answer to the first
    call that has it in its prompt.
    """

    kind: FlowKind
    source: int
    target: int


def flows_of(trace: RunTrace) -> Iterator[Flow]:
    """All arrows between calls that have timings."""
    nodes = trace.nodes
    nearest: list[int | None] = []  # of each node, the call that is nearest to it on its way to the root, or itself
    for node in nodes:
        above = None if node.view.parent is None else nearest[node.view.parent]
        if node.timings is not None:
            yield from _into(node, above, nodes, nearest)
        nearest.append(above if node.timings is None else node.view.id)


def _into(
    call: TracedNode, above: int | None, nodes: tuple[TracedNode, ...], nearest: list[int | None]
) -> Iterator[Flow]:
    """The arrows that lead to a call. `above` is the call before it."""
    target = call.view.id
    if above is not None and nodes[above].view.branch != call.view.branch:
        yield Flow("fork", above, target)
    found: set[int | None] = {None, above}
    place = call.view.parent
    while place is not None and place != above:
        between = nodes[place]
        sources = [between.source] if between.source is not None else between.ends
        for source in sources:
            before = nearest[source]
            if before not in found and before is not None:
                found.add(before)
                if not between.ends or _is_over(nodes[before], call):
                    yield Flow("join" if between.ends else "reference", before, target)
        place = between.view.parent


def _is_over(before: TracedNode, call: TracedNode) -> bool:
    """Whether one call had ended when another began."""
    ended, begun = before.timings, call.timings
    return ended is not None and begun is not None and ended.end_s <= begun.start_s
