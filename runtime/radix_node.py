"""The nodes of the radix cache, what looking for a prefix gives, and a picture of the tree."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from .batch import Int32Array
from .messages import CacheNode, CacheTree

NO_PAGES: Int32Array = np.empty(0, dtype=np.int32)

SHOWN_IDS = 16
"""So many of a node's token ids are part of its picture."""

_Shown = tuple[int, int, int, int, "RadixNode"]


@dataclass(eq=False, slots=True)
class RadixNode:
    """A run of token ids and the pages that hold their keys and values.

    Attributes:
        serial: breaks ties of last_access.
        namespace: of all sequences through this node.
        key: [len(pages) * page_size] token ids.
        pages: owned by the tree.
        parent: None for the root, and for a node that has left the tree.
        children: by the bytes of their key's first page; those of the root by these and their name space.
        handles: prefixes in use that end here.
        locks: handles that end here or below.
        last_access: order of use; a node's is at least its children's.
        queued: an entry for this node is in the eviction queue.
    """

    serial: int
    namespace: str
    key: Int32Array
    pages: Int32Array
    parent: RadixNode | None
    last_access: int
    children: dict[bytes, RadixNode] = field(default_factory=dict)
    handles: int = 0
    locks: int = 0
    queued: bool = False


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A prefix that is in the tree; good until the tree changes.

    Attributes:
        node: where it ends (the root for an empty one).
        node_pages: how many of that node's pages belong to it.
        pages: of the whole prefix, in order.
        length: in tokens, a multiple of page_size.
    """

    node: RadixNode
    node_pages: int
    pages: Int32Array
    length: int


@dataclass(frozen=True, slots=True)
class Insertion:
    """What `RadixCache.insert` did.

    Attributes:
        present: how many leading pages' worth of tokens were in the tree already; the caller's own pages for them are
            duplicates that the caller still owns.
        match: the whole sequence with its canonical pages.
    """

    present: int
    match: PrefixMatch


def picture(root: RadixNode, num_nodes: int, limit: int) -> CacheTree:
    """Up to `limit` nodes: those that most requests use now, then those used last; parents first.

    A node has at least its children's locks and was used no earlier, so the best node that is not shown yet is always
    a child of one that is, or of the root.
    """
    shown: list[CacheNode] = []
    best = _children(root, -1)
    heapq.heapify(best)
    while best and len(shown) < limit:
        *_, parent, node = heapq.heappop(best)
        for child in _children(node, len(shown)):
            heapq.heappush(best, child)
        first_ids = tuple(node.key[:SHOWN_IDS].tolist())
        shown.append(CacheNode(parent, len(node.key), first_ids, node.locks, node.last_access))
    return CacheTree(tuple(shown), num_nodes - len(shown))


def _children(node: RadixNode, place: int) -> list[_Shown]:
    """The children of the node shown at `place`, in the order to show them: locks, last use, age."""
    return [(-child.locks, -child.last_access, child.serial, place, child) for child in node.children.values()]
