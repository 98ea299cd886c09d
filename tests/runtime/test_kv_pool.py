"""The free list of KV pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.fake_runner import NO_TOKENS, ids

from palmette.runtime.batch import Int32Array
from palmette.runtime.errors import EngineError
from palmette.runtime.kv_pool import KVPool


def test_alloc_gives_each_page_once() -> None:
    """All pages can be taken, no page twice, and one more is refused."""
    pool = KVPool(5, 4)
    taken = np.concatenate([pool.alloc(2), pool.alloc(3)])
    assert sorted(taken.tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(EngineError, match="1 pages wanted, but 0 of 5"):
        pool.alloc(1)


def test_alloc_nothing() -> None:
    """Taking no pages is allowed at any time."""
    pool = KVPool(1, 1)
    pool.alloc(1)
    assert len(pool.alloc(0)) == 0
    pool.free(NO_TOKENS)
    assert pool.free_pages == 0


def test_free_twice_is_refused() -> None:
    """A page that is given back twice is an error at once, not a page with two owners later."""
    pool = KVPool(4, 1)
    pages = pool.alloc(2)
    pool.free(pages)
    with pytest.raises(EngineError, match="given back twice"):
        pool.free(pages)
    pool.check_invariants()


def test_the_same_page_twice_in_one_call_is_found() -> None:
    """A page named twice in one call breaks the invariants that every step of the tests checks."""
    pool = KVPool(4, 1)
    page = int(pool.alloc(2)[0])
    pool.free(ids(page, page))
    with pytest.raises(AssertionError):
        pool.check_invariants()


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for(tokens: int, pages: int) -> None:
    """A partly filled page is a page."""
    assert KVPool(4, 16).pages_for(tokens) == pages


def test_conservation_names_lost_and_doubled_pages() -> None:
    """A page that nobody owns, or two own, is found."""
    pool = KVPool(4, 1)
    pages = pool.alloc(2)
    pool.check_conservation([pages])
    with pytest.raises(AssertionError, match="owners"):
        pool.check_conservation([pages[:1]])
    with pytest.raises(AssertionError, match="owners"):
        pool.check_conservation([pages, pages[:1]])


@pytest.mark.parametrize(("pages", "size"), [(0, 1), (1, 0)])
def test_an_empty_pool_is_refused(pages: int, size: int) -> None:
    """A pool holds at least one token."""
    with pytest.raises(EngineError, match="at least one page"):
        KVPool(pages, size)


class PoolMachine(RuleBasedStateMachine):
    """The pool against a list of the runs of pages that were taken."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool(12, 2)
        self.taken: list[Int32Array] = []

    @rule(count=st.integers(0, 13))
    def alloc(self, count: int) -> None:
        if count <= 12 - sum(map(len, self.taken)):
            self.taken.append(self.pool.alloc(count))
        else:
            with pytest.raises(EngineError):
                self.pool.alloc(count)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.taken:
            self.pool.free(self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1))))

    @invariant()
    def conserved(self) -> None:
        self.pool.check_invariants()
        self.pool.check_conservation(self.taken)
        assert self.pool.free_pages == len(self.pool.free_ids()) == 12 - sum(map(len, self.taken))


PoolMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestPool = PoolMachine.TestCase
