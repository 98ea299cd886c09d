"""The order in which texts that share prefixes follow each other: depth first through the trie of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Key = tuple[str, ...]
"""A text in parts. Two keys share what comes before the first character in which they differ."""

LEAST_SHARED = 64
"""Characters that two branches of the trie must share to be kept together: less is not worth another order."""


@dataclass(slots=True)
class _Node:
    """A place in the trie at which texts part.

    Attributes:
        depth: characters that all texts below share.
        children: nodes, and places of texts; the earliest text of each is where it stands in the order.
        first: the earliest place below.
    """

    depth: int
    children: list[_Node | int] = field(default_factory=list)
    first: int = -1


def depth_first(keys: Sequence[Key], *, least: int = LEAST_SHARED) -> list[int]:
    """Places of the keys, those that share a prefix next to each other, and else in the given order.

    Any depth-first order reads each shared prefix in one go, which is what a cache of any size needs; of these it is
    the one that begins with the earliest key, and goes on with the earliest wherever it may choose.

    Args:
        least: characters that keys must share, beyond what they share with others, to be kept together.
    """
    return _places(_trie(keys), least)


def shared_length(left: Key, right: Key) -> int:
    """Characters that two keys share at their beginning."""
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            return length + _shared_characters(one, other)
        length += len(one)
    return length


def shared_in_all(keys: Sequence[Key]) -> int:
    """Characters that need not be read again, if a trie of the keys is read instead of each key."""
    ordered = sorted(keys)
    return sum(map(shared_length, ordered, ordered[1:]))


def _shared_characters(left: str, right: str) -> int:
    """Halves what is compared: Python compares long strings far faster than it counts through them."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _trie(keys: Sequence[Key]) -> _Node:
    """The root of the trie of all keys. In sorted order neighbours share most, so one stack of open nodes builds it."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    open_nodes = [_Node(0)]
    before: int | None = None
    for place in order:
        depth = 0 if before is None else shared_length(keys[before], keys[place])
        _close_below(open_nodes, depth)
        if open_nodes[-1].depth < depth:  # the key before and this one part deeper than any did
            open_nodes.append(_Node(depth, [open_nodes[-1].children.pop()]))
        open_nodes[-1].children.append(place)
        before = place
    _close_below(open_nodes, 0)
    return open_nodes[0]


def _close_below(open_nodes: list[_Node], depth: int) -> None:
    """Close the nodes that lie deeper than `depth`, so that the last open one does not."""
    while open_nodes[-1].depth > depth:
        closed = open_nodes.pop()
        closed.first = min(_first(child) for child in closed.children)
        if open_nodes[-1].depth < depth:
            open_nodes.append(_Node(depth))
        open_nodes[-1].children.append(closed)


def _first(child: _Node | int) -> int:
    return child.first if isinstance(child, _Node) else child


def _places(root: _Node, least: int) -> list[int]:
    """Places below a node, depth first, the earliest child first; nodes that add too little are looked through."""
    places: list[int] = []
    waiting: list[_Node | int] = [root]
    while waiting:
        child = waiting.pop()
        if isinstance(child, int):
            places.append(child)
        else:
            waiting += sorted(_kept_children(child, least), key=_first, reverse=True)
    return places


def _kept_children(node: _Node, least: int) -> list[_Node | int]:
    """The children of a node; in the place of those that share less than `least` more than it, their own."""
    kept: list[_Node | int] = []
    waiting = list(node.children)
    while waiting:
        child = waiting.pop()
        if isinstance(child, _Node) and child.depth - node.depth < least:
            waiting += child.children
        else:
            kept.append(child)
    return kept
