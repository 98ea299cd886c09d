"""The radix cache against a plain dictionary of what every page holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.fake_runner import ids

from palmette.runtime.batch import Int32Array
from palmette.runtime.errors import EngineError
from palmette.runtime.kv_pool import KVPool
from palmette.runtime.radix_cache import RadixCache
from palmette.runtime.radix_node import RadixNode


class Tree:
    """A cache with a pool, and methods that take plain lists."""

    def __init__(self, num_pages: int = 64, page_size: int = 1) -> None:
        self.pool = KVPool(num_pages, page_size)
        self.cache = RadixCache(self.pool)

    def put(self, *tokens: int) -> list[int]:
        """Insert a sequence with new pages, as a request that computed all of it would; returns its canonical pages."""
        pages = self.pool.alloc(len(tokens) // self.pool.page_size)
        insertion = self.cache.insert(ids(*tokens), pages)
        self.pool.free(pages[: insertion.present])
        self.check()
        canonical: list[int] = insertion.match.pages.tolist()
        return canonical

    def match(self, *tokens: int) -> list[int]:
        pages: list[int] = self.cache.match_prefix(ids(*tokens)).pages.tolist()
        return pages

    def lock(self, *tokens: int) -> RadixNode:
        """Lock the cached prefix of a sequence."""
        handle = self.cache.lock(self.cache.match_prefix(ids(*tokens)))
        self.check()
        return handle

    def evict(self, pages: int) -> int:
        freed = self.cache.evict(pages)
        self.check()
        return freed

    def keys(self) -> list[list[int]]:
        """Keys of all nodes."""
        return sorted(node.key.tolist() for node in self.cache._nodes())

    def check(self) -> None:
        self.pool.check_invariants()
        self.cache.check_invariants()
        self.pool.check_conservation([self.cache.pages()])


def test_an_empty_cache_matches_nothing() -> None:
    """Nothing is cached at first, and an empty prefix can be locked."""
    tree = Tree()
    assert tree.match(1, 2, 3) == []
    tree.cache.unlock(tree.lock(1, 2, 3))
    tree.check()


def test_match_finds_the_longest_prefix() -> None:
    """What was inserted is found again, as far as the sequences agree."""
    tree = Tree()
    pages = tree.put(1, 2, 3, 4)
    assert tree.match(1, 2, 3, 4, 5) == pages
    assert tree.match(1, 2, 9) == pages[:2]
    assert tree.match(2) == []


def test_insert_reports_what_was_there() -> None:
    """The pages of a prefix that is cached already stay the cached ones; the caller keeps its duplicates."""
    tree = Tree()
    first = tree.put(1, 2, 3)
    own = tree.pool.alloc(5)
    insertion = tree.cache.insert(ids(1, 2, 3, 4, 5), own)
    assert insertion.present == 3
    assert insertion.match.pages.tolist() == first + own[3:].tolist()
    tree.pool.free(own[:3])
    tree.check()


def test_inserting_the_same_again_keeps_the_tree() -> None:
    """A sequence that is a prefix of what is cached adds nothing and splits nothing."""
    tree = Tree()
    pages = tree.put(1, 2, 3, 4)
    assert tree.put(1, 2) == pages[:2]
    assert tree.keys() == [[1, 2, 3, 4]]


def test_a_fork_splits_a_node() -> None:
    """Two sequences that part share a node up to there."""
    tree = Tree()
    tree.put(1, 2, 3)
    tree.put(1, 2, 4)
    assert tree.keys() == [[1, 2], [3], [4]]


def test_keys_are_whole_pages() -> None:
    """With pages of four tokens, sequences that differ within a page share nothing of it."""
    tree = Tree(page_size=4)
    pages = tree.put(1, 2, 3, 4, 5, 6, 7, 8)
    assert tree.match(1, 2, 3, 4, 5, 6, 7, 9) == pages[:1]
    assert tree.match(1, 2, 3) == []
    tree.put(1, 2, 3, 4, 5, 6, 7, 9)
    assert tree.keys() == [[1, 2, 3, 4], [5, 6, 7, 8], [5, 6, 7, 9]]


def test_matching_changes_nothing() -> None:
    """Looking for a prefix that ends within a node splits it only when it is locked."""
    tree = Tree()
    tree.put(1, 2, 3, 4)
    tree.match(1, 2)
    assert tree.keys() == [[1, 2, 3, 4]]
    handle = tree.lock(1, 2)
    assert tree.keys() == [[1, 2], [3, 4]]
    tree.cache.unlock(handle)
    assert tree.keys() == [[1, 2, 3, 4]]


def test_locked_pages_are_not_evicted() -> None:
    """An eviction takes all but the path of a handle; after unlock it takes that as well."""
    tree = Tree()
    tree.put(1, 2, 3, 4)
    handle = tree.lock(1, 2)
    assert (tree.cache.evictable_pages, tree.cache.protected_pages) == (2, 2)
    assert tree.evict(10) == 2
    tree.cache.unlock(handle)
    assert tree.evict(10) == 2
    assert tree.pool.free_pages == 64


def test_unlocking_twice_is_refused() -> None:
    """A handle is given back once."""
    tree = Tree()
    tree.put(1, 2)
    handle = tree.lock(1, 2)
    tree.cache.unlock(handle)
    with pytest.raises(EngineError, match="unlocked twice"):
        tree.cache.unlock(handle)


def test_eviction_takes_what_was_used_longest_ago() -> None:
    """Leaves go in order of last use; using a sequence saves it."""
    tree = Tree()
    for first in (1, 2, 3):
        tree.put(first, 0, 0)
    tree.cache.unlock(tree.lock(1, 0, 0))
    assert tree.evict(3) == 3
    assert [len(tree.match(first, 0, 0)) for first in (1, 2, 3)] == [3, 0, 3]


def test_eviction_takes_no_more_than_is_needed() -> None:
    """A long leaf is shortened from its end."""
    tree = Tree()
    pages = tree.put(*range(10))
    assert tree.evict(3) == 3
    assert tree.match(*range(10)) == pages[:7]


def test_the_order_of_use_can_be_injected() -> None:
    """Last use is what the injected counter says at that moment."""
    ticks = iter(range(100, 200))
    cache = RadixCache(KVPool(4, 1), tick=lambda: next(ticks))
    insertion = cache.insert(ids(1), ids(0))
    assert insertion.match.node.last_access == 100


def test_locked_pages_are_safe_under_a_clock_that_stands_still() -> None:
    """Protection rests on locks, not on the order of use."""
    pool = KVPool(2, 1)
    cache = RadixCache(pool, tick=lambda: 0)
    insertion = cache.insert(ids(1, 2), pool.alloc(2))
    cache.lock(insertion.match)
    assert cache.evict(2) == 0
    cache.check_invariants()


def test_a_parent_left_with_one_child_merges() -> None:
    """After one of two branches is evicted, the other and its parent are one node again."""
    tree = Tree()
    tree.put(1, 2, 3)
    pages = tree.put(1, 2, 4)
    assert tree.evict(1) == 1
    assert tree.keys() == [[1, 2, 4]]
    assert tree.match(1, 2, 4) == pages


def test_no_merge_where_a_handle_ends() -> None:
    """A parent with a handle stays; when the handle goes, it merges, and handles below stay good."""
    tree = Tree()
    tree.put(1, 2, 3)
    tree.put(1, 2, 4)
    upper, lower = tree.lock(1, 2), tree.lock(1, 2, 4)
    tree.evict(1)
    assert tree.keys() == [[1, 2], [4]]
    tree.cache.unlock(upper)
    assert tree.keys() == [[1, 2, 4]]
    assert tree.cache.path_pages(lower).tolist() == tree.match(1, 2, 4)
    tree.cache.unlock(lower)
    tree.check()


def test_a_handle_survives_splits_above_it() -> None:
    """A handle locks the same pages after its node was split by another request."""
    tree = Tree()
    pages = tree.put(1, 2, 3, 4)
    handle = tree.lock(1, 2, 3, 4)
    tree.put(1, 2, 9)
    assert tree.cache.path_pages(handle).tolist() == pages
    tree.evict(64)
    assert tree.match(1, 2, 3, 4) == pages


def test_extending_a_sequence_keeps_one_node() -> None:
    """A conversation that grows turn by turn is one node, not a chain."""
    tree = Tree()
    for length in (3, 6, 9):
        tree.put(*range(length))
    assert tree.keys() == [list(range(9))]


def test_flush_drops_all_but_what_is_locked() -> None:
    """Flush returns the number of tokens dropped."""
    tree = Tree(page_size=2)
    tree.put(1, 2, 3, 4)
    tree.put(5, 6)
    handle = tree.lock(1, 2)
    assert tree.cache.flush() == 4
    tree.cache.unlock(handle)
    assert tree.cache.flush() == 2
    assert tree.pool.free_pages == 64


def test_deep_trees_need_no_recursion() -> None:
    """A tree thousands of nodes deep is matched, locked, checked and evicted."""
    depth = 3000
    tree = Tree(num_pages=2 * depth)
    sequence = list(range(10, 10 + depth))
    pages = tree.pool.alloc(depth)
    tree.cache.insert(ids(*sequence), pages)
    handles = [tree.cache.lock(tree.cache.match_prefix(ids(*sequence[:n]))) for n in range(depth, 0, -100)]
    for n in range(100, depth, 7):
        branch = tree.pool.alloc(1)
        tree.cache.insert(ids(*sequence[:n], 1), np.concatenate([pages[:n], branch]))
    tree.check()
    for handle in handles:
        tree.cache.unlock(handle)
    assert tree.evict(2 * depth) == depth + len(range(100, depth, 7))


def test_the_eviction_queue_does_not_grow_with_use() -> None:
    """Entries for nodes that left the tree are forgotten."""
    tree = Tree(num_pages=8)
    for first in range(2000):
        tree.put(first, 1)
        tree.put(first, 1, 2)
        tree.cache.evict(3)
    assert len(tree.cache._queue) < 200


# -- name spaces ----------------------------------------------------------------------------------------------------


def test_a_prefix_is_found_in_its_own_name_space_only() -> None:
    """The same tokens in two name spaces are two sequences with pages of their own."""
    tree = Tree()
    own = tree.pool.alloc(3)
    assert tree.cache.insert(ids(1, 2, 3), own, "x").present == 0
    assert tree.match(1, 2, 3) == []
    assert tree.put(1, 2, 3) != own.tolist()
    assert tree.cache.match_prefix(ids(1, 2, 3), "x").pages.tolist() == own.tolist()
    assert tree.cache.match_prefix(ids(1, 2, 3), "y").length == 0
    tree.check()


def test_no_name_space_reads_as_another_one() -> None:
    """Neither names that begin alike, nor bytes that look like tokens, nor surrogates can be mixed up."""
    tree = Tree(num_pages=64, page_size=2)
    names = ["", "x", "xx", "\x01\x00\x00\x00", "\x01\x00\x00\x00\x02\x00\x00\x00", "\ud800", "é"]
    for place, name in enumerate(names):
        pages = tree.pool.alloc(2)
        assert tree.cache.insert(ids(1, 2, 1, 2), pages, name).present == 0, place
    tree.check()
    found = [tree.cache.match_prefix(ids(1, 2, 1, 2), name).pages.tolist() for name in names]
    assert len({tuple(pages) for pages in found}) == len(names)


def test_splits_and_merges_stay_in_their_name_space() -> None:
    """A first node that is split, and joined again, is still found by its name space."""
    tree = Tree()
    pages = tree.pool.alloc(3)
    tree.cache.insert(ids(1, 2, 3), pages, "x")
    handle = tree.cache.lock(tree.cache.match_prefix(ids(1, 9), "x"))
    tree.check()
    assert tree.keys() == [[1], [2, 3]]
    tree.cache.unlock(handle)
    tree.check()
    assert tree.keys() == [[1, 2, 3]]
    assert tree.cache.match_prefix(ids(1, 2, 3), "x").pages.tolist() == pages.tolist()


def test_name_spaces_share_one_order_of_use_and_leave_nothing_behind() -> None:
    """An eviction takes what was used longest ago, whosever it is; an empty name space is gone."""
    tree = Tree()
    for name in "xyz":
        tree.cache.insert(ids(1, 2), tree.pool.alloc(2), name)
    tree.cache.unlock(tree.cache.lock(tree.cache.match_prefix(ids(1, 2), "x")))
    assert tree.evict(2) == 2
    assert [tree.cache.match_prefix(ids(1, 2), name).length for name in "xyz"] == [2, 0, 2]
    tree.evict(64)
    assert not tree.cache._root.children
    assert tree.cache.num_nodes == 0


# -- pictures -------------------------------------------------------------------------------------------------------


def test_a_picture_shows_the_most_used_first() -> None:
    """Nodes that requests use, then the last used; a parent before its children; the rest is counted."""
    tree = Tree()
    tree.put(1, 2, 3)
    tree.put(1, 2, 4)
    tree.put(*range(10, 40))
    tree.put(7, 7)
    tree.lock(1, 2, 3)
    shown = tree.cache.describe(4)
    assert [(node.parent, node.tokens, node.token_ids[:2], node.locks) for node in shown.nodes] == [
        (-1, 2, (1, 2), 1),
        (0, 1, (3,), 1),
        (-1, 2, (7, 7), 0),
        (-1, 30, (10, 11), 0),
    ]
    assert shown.left_out == 1
    assert len(shown.nodes[3].token_ids) == 16
    assert tree.cache.describe(0).left_out == 5
    assert tree.cache.describe(100).left_out == 0


def test_a_picture_of_a_deep_tree_needs_no_recursion() -> None:
    """Thousands of nodes on one path, and the parents are right."""
    depth = 2000
    tree = Tree(num_pages=2 * depth)
    pages = tree.pool.alloc(depth)
    sequence = list(range(10, 10 + depth))
    tree.cache.insert(ids(*sequence), pages)
    for n in range(depth - 1, 0, -1):
        tree.cache.insert(ids(*sequence[:n], 1), np.concatenate([pages[:n], tree.pool.alloc(1)]))
    shown = tree.cache.describe(10_000)
    assert shown.left_out == 0
    assert len(shown.nodes) == 2 * depth - 1
    assert all(node.parent < place for place, node in enumerate(shown.nodes))


SPACES = st.sampled_from(["", "", "x", "y"])


class CacheMachine(RuleBasedStateMachine):
    """Random use of one cache. The model: which prefix every page holds, and which sequences are locked."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: dict[int, tuple[int, ...]] = {}  # page -> the tokens up to its end
        self.spaces: dict[int, str] = {}  # page -> its name space
        self.handles: list[tuple[RadixNode, tuple[int, ...], str]] = []

    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def begin(self, page_size: int) -> None:
        self.size = page_size
        self.pool = KVPool(24, page_size)
        self.cache = RadixCache(self.pool)

    def spell(self, pages: Sequence[int], space: str) -> tuple[int, ...]:
        """The tokens of a run of pages, after checking that each holds the prefix that the run spells."""
        for count, page in enumerate(pages, 1):
            assert self.spaces[page] == space
            assert len(self.holds[page]) == count * self.size
            assert self.holds[pages[count - 2]] == self.holds[page][: -self.size] or count == 1
        return self.holds[pages[-1]] if pages else ()

    def alloc(self, tokens: Int32Array, space: str) -> Int32Array:
        """Pages for a whole sequence, written as a model would."""
        pages = self.pool.alloc(len(tokens) // self.size)
        for count, page in enumerate(pages.tolist(), 1):
            self.holds[page], self.spaces[page] = tuple(tokens[: count * self.size].tolist()), space
        return pages

    @rule(tokens=st.lists(st.integers(0, 2), max_size=16), space=SPACES)
    def insert(self, tokens: list[int], space: str) -> None:
        whole = ids(*tokens[: len(tokens) // self.size * self.size])
        needed = len(whole) // self.size
        self.cache.evict(needed - self.pool.free_pages)
        if needed > self.pool.free_pages:
            return
        known = len(self.cache.match_prefix(whole, space).pages)
        pages = self.alloc(whole, space)
        insertion = self.cache.insert(whole, pages, space)
        assert insertion.present == known
        assert self.spell(insertion.match.pages.tolist(), space) == tuple(whole.tolist())
        self.pool.free(pages[:known])
        assert np.array_equal(self.cache.match_prefix(whole, space).pages, insertion.match.pages)

    @rule(tokens=st.lists(st.integers(0, 2), max_size=20), space=SPACES)
    def match(self, tokens: list[int], space: str) -> None:
        match = self.cache.match_prefix(ids(*tokens), space)
        assert match.length == len(match.pages) * self.size
        assert self.spell(match.pages.tolist(), space) == tuple(tokens[: match.length])

    @rule(tokens=st.lists(st.integers(0, 2), max_size=16), space=SPACES)
    def lock(self, tokens: list[int], space: str) -> None:
        match = self.cache.match_prefix(ids(*tokens), space)
        self.handles.append((self.cache.lock(match), tuple(tokens[: match.length]), space))

    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        if self.handles:
            handle, _, _ = self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1)))
            self.cache.unlock(handle)

    @rule(pages=st.integers(0, 10))
    def evict(self, pages: int) -> None:
        evictable, free = self.cache.evictable_pages, self.pool.free_pages
        freed = self.cache.evict(pages)
        assert freed == min(pages, evictable) == self.pool.free_pages - free

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        assert self.cache.evictable_pages == 0

    @invariant()
    def laws(self) -> None:
        self.pool.check_invariants()
        self.cache.check_invariants()
        self.pool.check_conservation([self.cache.pages()])
        for handle, tokens, space in self.handles:
            assert self.spell(self.cache.path_pages(handle).tolist(), space) == tokens
        whole = self.cache.describe(1 << 20)
        assert (len(whole.nodes), whole.left_out) == (self.cache.num_nodes, 0)
        assert all(node.parent < place for place, node in enumerate(whole.nodes))


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestCache = CacheMachine.TestCase
