"""Page tables in step with the pool and the cache."""

from __future__ import annotations

import pytest
from tests.fakes import make_request

from palmette.runtime.errors import EngineError
from palmette.runtime.kv_memory import KVMemory
from palmette.runtime.request import Request


def compute(memory: KVMemory, request: Request, tokens: int | None = None) -> None:
    """Attach, reserve and commit as a step does."""
    if request.page_table.handle is None:
        memory.attach(request, memory.match(request))
    count = request.remaining if tokens is None else tokens
    memory.reserve(request, count)
    request.num_computed += count


def table(request: Request) -> list[int]:
    pages: list[int] = request.page_table.pages.view.tolist()
    return pages


@pytest.mark.parametrize("page_size", [1, 4])
def test_commit_points_at_the_canonical_pages(page_size: int) -> None:
    """Two requests that computed the same prefix side by side end with the same pages; the copies are freed."""
    memory = KVMemory(16, page_size)
    first, second = make_request("a", [3] * 8), make_request("b", [3] * 8)
    for request in (first, second):
        compute(memory, request)
    memory.check_invariants([first, second])
    own = table(second)
    memory.commit(first)
    memory.commit(second)
    assert table(first) == table(second) != own
    assert memory.pool.free_pages == 16 - 8 // page_size
    memory.check_invariants([first, second])


def test_the_partly_filled_page_stays_with_the_request() -> None:
    """Only whole pages enter the tree."""
    memory = KVMemory(16, 4)
    request = make_request("a", [3] * 7)
    compute(memory, request)
    memory.commit(request)
    assert request.page_table.tree_pages == 1
    assert len(request.page_table.own_pages) == 1
    memory.release(request)
    assert memory.pool.free_pages == 15
    memory.check_idle()


def test_commit_goes_on_from_a_chunk() -> None:
    """A prefix is committed chunk by chunk; the lock moves with it and the node stays one."""
    memory = KVMemory(16, 2)
    request = make_request("a", list(range(3, 12)))
    for tokens in (3, 1, 4):
        compute(memory, request, tokens)
        memory.commit(request)
        memory.check_invariants([request])
    assert request.page_table.tree_pages == 4
    assert memory.cache is not None
    assert memory.cache._num_nodes == 1


def test_the_last_prompt_token_is_always_computed() -> None:
    """The whole prompt is cached, and still its last token is left to compute."""
    memory = KVMemory(16, 1)
    first, second = make_request("a", [3, 4, 5]), make_request("b", [3, 4, 5])
    compute(memory, first)
    memory.release(first)
    memory.attach(second, memory.match(second))
    assert second.remaining == 1


def test_reserve_evicts_by_need() -> None:
    """Pages come from the free list first, then from prefixes that nobody uses."""
    memory = KVMemory(8, 1)
    first, second = make_request("a", [3] * 6), make_request("b", [4] * 5)
    compute(memory, first)
    memory.release(first)
    assert (memory.pool.free_pages, memory.available_pages) == (2, 8)
    compute(memory, second)
    assert memory.cache is not None
    assert memory.cache.evictable_pages == 3
    assert memory.room(second) == 3
    with pytest.raises(EngineError, match="pages wanted"):
        memory.reserve(second, 4)


def test_without_a_cache_pages_go_straight_back() -> None:
    """radix_cache=False keeps nothing."""
    memory = KVMemory(8, 2, radix_cache=False)
    request = make_request("a", [3] * 6)
    assert memory.match(request) is None
    compute(memory, request)
    memory.commit(request)
    memory.check_invariants([request])
    memory.release(request)
    assert memory.pool.free_pages == 8
    assert memory.flush() == 0


def test_lost_pages_are_found_when_idle() -> None:
    """A page that nobody gave back is an error as soon as nothing runs."""
    memory = KVMemory(8, 1)
    memory.pool.alloc(2)
    with pytest.raises(EngineError, match="2 pages of the KV pool were lost"):
        memory.check_idle()
