"""The radix cache: computed prefixes, as a tree over token ids whose nodes own pages of the KV cache.

A node's key is a run of whole pages of token ids; a partly filled page is never in the tree. Requests hold *handles* on
the prefixes they use: a handle is the node where the prefix ends, and it locks the path up to the root. Splits and
merges keep the lower node's identity, so a handle stays good.

Prefixes belong to a *name space* and are shared within it only. There is one tree all the same, one order of use and
one pool: the first edge of a path carries the name space besides the first page, and no other edge does. A name space
is there as long as it has a prefix in the tree.

Source: the radix tree of SGLang (Zheng et al., 2024, section 3). Here an eviction takes only as many pages off the end
of a leaf as are needed, and a node that is left with one child and no handle is merged with it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from .batch import Int32Array
from .errors import EngineError
from .kv_pool import KVPool
from .messages import CacheTree
from .radix_node import NO_PAGES, Insertion, PrefixMatch, RadixNode, picture

_QUEUE_SLACK = 64


class RadixCache:
    """Prefixes by token ids, with locks and eviction of what was used longest ago.

    Args:
        pool: where evicted pages go back to.
        tick: order of use, ascending; None counts uses.
    """

    def __init__(self, pool: KVPool, *, tick: Callable[[], int] | None = None) -> None:
        self._pool = pool
        self._page_size = pool.page_size
        self._tick = tick or itertools.count(1).__next__
        self._serials = itertools.count()
        self._root = RadixNode(next(self._serials), "", NO_PAGES, NO_PAGES, None, 0)
        self._queue: list[tuple[int, int, RadixNode]] = []  # leaves; an entry may be stale, see _oldest_leaf
        self._num_nodes = 0
        self.evictable_pages = 0
        self.protected_pages = 0
        self.insertions = 0

    # -- use --------------------------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """Nodes of the tree, its root not counted."""
        return self._num_nodes

    def match_prefix(self, token_ids: Int32Array, namespace: str = "") -> PrefixMatch:
        """The longest prefix of `token_ids` that is in the tree, in whole pages. Changes nothing."""
        size = self._page_size
        end = len(token_ids) // size * size
        node, kept, position = self._root, 0, 0
        parts: list[Int32Array] = []
        while position < end:
            child = node.children.get(self._edge(node, token_ids[position : position + size], namespace))
            if child is None:
                break
            kept = _common_length(child.key, token_ids[position:end]) // size
            parts.append(child.pages[:kept])
            position += kept * size
            node = child
            if kept < len(child.pages):
                break
        return PrefixMatch(node, kept, np.concatenate(parts) if parts else NO_PAGES, position)

    def lock(self, match: PrefixMatch) -> RadixNode:
        """Keep the pages of `match` until the returned handle is unlocked. Splits the node it ends inside of."""
        node = match.node
        if match.node_pages < len(node.pages):
            node = self._split(node, match.node_pages)
        node.handles += 1
        self._touch(node)
        step: RadixNode | None = node
        while step is not None:
            if step.locks == 0:
                self.evictable_pages -= len(step.pages)
                self.protected_pages += len(step.pages)
            step.locks += 1
            step = step.parent
        return node

    def unlock(self, handle: RadixNode) -> None:
        """Give a handle back.

        Raises:
            EngineError: it was given back before.
        """
        if handle.handles < 1:
            raise EngineError("a radix cache handle was unlocked twice")
        handle.handles -= 1
        self._touch(handle)
        step: RadixNode | None = handle
        while step is not None:
            step.locks -= 1
            if step.locks == 0:
                self.protected_pages -= len(step.pages)
                self.evictable_pages += len(step.pages)
            step = step.parent
        self._enqueue(handle)
        self._merge_only_child(handle)

    def insert(self, token_ids: Int32Array, pages: Int32Array, namespace: str = "") -> Insertion:
        """Put a computed sequence into the tree.

        Args:
            token_ids: [len(pages) * page_size].
            pages: of the sequence. Those after the first `present` of the result belong to the tree from now on; those
                before stay the caller's, who locks the result first, points at its pages, and frees duplicates last.
        """
        match = self.match_prefix(token_ids, namespace)
        present = len(match.pages)
        if present == len(pages):
            self._touch(match.node)
            return Insertion(present, match)
        parent = match.node
        if match.node_pages < len(parent.pages):
            parent = self._split(parent, match.node_pages)
        leaf = self._add_leaf(parent, namespace, token_ids[match.length :].copy(), pages[present:].copy())
        canonical = np.concatenate((match.pages, leaf.pages))
        self._merge_only_child(parent)
        self.insertions += 1
        return Insertion(present, PrefixMatch(leaf, len(leaf.pages), canonical, len(token_ids)))

    def evict(self, pages: int) -> int:
        """Free at least `pages` pages where unlocked leaves hold so many, least recently used first.

        Returns:
            how many pages went back to the pool.
        """
        dropped: list[Int32Array] = []
        left = pages
        while left > 0 and (leaf := self._oldest_leaf()) is not None:
            dropped.append(self._shorten(leaf, left))
            left -= len(dropped[-1])
        if dropped:
            self._pool.free(np.concatenate(dropped))
        return pages - left

    def flush(self) -> int:
        """Drop every prefix that no handle locks; returns the number of tokens dropped."""
        return self.evict(self.evictable_pages) * self._page_size

    # -- the tree ---------------------------------------------------------------------------------------------------

    def _edge(self, parent: RadixNode, key: Int32Array, namespace: str) -> bytes:
        """What a child of `parent` is found by. The parts of a first edge cannot be mixed up: a page has one length."""
        page = key[: self._page_size].tobytes()
        return page + namespace.encode("utf-8", "surrogatepass") if parent is self._root and namespace else page

    def _hang(self, node: RadixNode, parent: RadixNode) -> None:
        node.parent = parent
        parent.children[self._edge(parent, node.key, node.namespace)] = node

    def _touch(self, node: RadixNode) -> None:
        now = self._tick()
        step: RadixNode | None = node
        while step is not None:
            step.last_access = now
            step = step.parent

    def _add_leaf(self, parent: RadixNode, namespace: str, key: Int32Array, pages: Int32Array) -> RadixNode:
        leaf = RadixNode(next(self._serials), namespace, key, pages, None, 0)
        self._hang(leaf, parent)
        self._num_nodes += 1
        self.evictable_pages += len(pages)
        self._touch(leaf)
        self._enqueue(leaf)
        return leaf

    def _split(self, node: RadixNode, pages: int) -> RadixNode:
        """Cut `node` after `pages` of its pages; returns the new upper node. Its handles stay at the lower one."""
        parent, cut = node.parent, pages * self._page_size
        assert parent is not None
        upper = RadixNode(
            next(self._serials), node.namespace, node.key[:cut], node.pages[:pages], None, node.last_access
        )
        upper.locks = node.locks
        self._hang(upper, parent)
        node.key, node.pages = node.key[cut:], node.pages[pages:]
        self._hang(node, upper)
        self._num_nodes += 1
        return upper

    def _merge_only_child(self, node: RadixNode) -> None:
        """Join `node` to its child where it has one only and no handle ends at it. The child keeps its identity."""
        parent = node.parent
        if parent is None or node.handles or len(node.children) != 1:
            return
        (child,) = node.children.values()
        child.key = np.concatenate((node.key, child.key))
        child.pages = np.concatenate((node.pages, child.pages))
        child.last_access = max(child.last_access, node.last_access)
        self._hang(child, parent)
        self._remove(node)

    def _remove(self, node: RadixNode) -> None:
        node.parent = None
        self._num_nodes -= 1

    # -- eviction ---------------------------------------------------------------------------------------------------

    def _enqueue(self, node: RadixNode) -> None:
        if node.parent is not None and not (node.queued or node.locks or node.children):
            node.queued = True
            heapq.heappush(self._queue, (node.last_access, node.serial, node))
            if len(self._queue) > 2 * self._num_nodes + _QUEUE_SLACK:
                self._rebuild_queue()

    def _rebuild_queue(self) -> None:
        """Forget entries of nodes that left the tree or became inner nodes."""
        for _, _, node in self._queue:
            node.queued = _is_leaf(node)
        self._queue = [(node.last_access, node.serial, node) for _, _, node in self._queue if node.queued]
        heapq.heapify(self._queue)

    def _oldest_leaf(self) -> RadixNode | None:
        """Take the least recently used unlocked leaf off the queue."""
        while self._queue:
            queued_at, _, node = heapq.heappop(self._queue)
            node.queued = False
            if not _is_leaf(node) or node.locks:
                continue  # unlocking it queues it again
            if node.last_access == queued_at:
                return node
            self._enqueue(node)
        return None

    def _shorten(self, leaf: RadixNode, pages: int) -> Int32Array:
        """Take up to `pages` pages off the end of a leaf that is off the queue; returns them."""
        keep = max(0, len(leaf.pages) - pages)
        dropped = leaf.pages[keep:]
        self.evictable_pages -= len(dropped)
        if keep:
            leaf.key, leaf.pages = leaf.key[: keep * self._page_size], leaf.pages[:keep]
            self._enqueue(leaf)
            return dropped
        parent = leaf.parent
        assert parent is not None
        del parent.children[self._edge(parent, leaf.key, leaf.namespace)]
        self._remove(leaf)
        self._enqueue(parent)
        self._merge_only_child(parent)
        return dropped

    def describe(self, limit: int) -> CacheTree:
        """Up to `limit` nodes for a picture, those in most use first, parents before children."""
        return picture(self._root, self._num_nodes, limit)

    # -- checks -----------------------------------------------------------------------------------------------------

    def pages(self) -> Int32Array:
        """Every page that the tree owns."""
        parts = [node.pages for node in self._nodes()]
        return np.concatenate(parts) if parts else NO_PAGES

    def path_pages(self, handle: RadixNode) -> Int32Array:
        """The pages of the prefix that `handle` locks."""
        parts: list[Int32Array] = [NO_PAGES]
        step: RadixNode | None = handle
        while step is not None:
            parts.append(step.pages)
            step = step.parent
        return np.concatenate(parts[::-1])

    def _nodes(self) -> Iterator[RadixNode]:
        """Every node but the root, parents first."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check_invariants(self) -> None:
        """Raise AssertionError unless every law of the tree holds and its running counts equal a recount."""
        nodes = list(self._nodes())
        assert len(nodes) == self._num_nodes
        for node in nodes:
            self._check_node(node)
        assert self._root.locks == self._root.handles + sum(n.locks for n in self._root.children.values())
        assert self.evictable_pages == sum(len(node.pages) for node in nodes if not node.locks)
        assert self.protected_pages == sum(len(node.pages) for node in nodes if node.locks)
        queued = [node for _, _, node in self._queue]
        assert len({id(node) for node in queued}) == len(queued)
        assert {id(n) for n in nodes if n.queued} >= {id(n) for n in nodes if not n.children and not n.locks}

    def _check_node(self, node: RadixNode) -> None:
        parent = node.parent
        assert parent is not None
        assert parent.children[self._edge(parent, node.key, node.namespace)] is node
        assert parent is self._root or parent.namespace == node.namespace
        assert len(node.pages) > 0
        assert len(node.key) == len(node.pages) * self._page_size
        assert node.locks == node.handles + sum(child.locks for child in node.children.values())
        assert len(node.children) != 1 or node.handles, "a node with one child and no handle"
        assert all(child.last_access <= node.last_access for child in node.children.values())


def _is_leaf(node: RadixNode) -> bool:
    return node.parent is not None and not node.children


def _common_length(left: Int32Array, right: Int32Array) -> int:
    """Length of the common prefix of two arrays, neither of them empty."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    first = int(different.argmax())
    return first if different[first] else length
