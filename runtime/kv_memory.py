"""Who holds which page: the pool, the radix cache and the page tables of running requests, kept in step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .errors import EngineError
from .kv_pool import KVPool
from .messages import CacheTree
from .radix_cache import RadixCache
from .radix_node import PrefixMatch
from .request import PageTable, Request


class KVMemory:
    """The KV cache as requests see it: attach a cached prefix, reserve room, commit what was computed, release.

    Args:
        radix_cache: False keeps no prefixes: a request's pages go straight back to the pool.
    """

    def __init__(self, num_pages: int, page_size: int, *, radix_cache: bool = True) -> None:
        self.pool = KVPool(num_pages, page_size)
        self.cache = RadixCache(self.pool) if radix_cache else None
        self.page_size = page_size

    @property
    def pool_tokens(self) -> int:
        return self.pool.num_pages * self.page_size

    @property
    def available_pages(self) -> int:
        """Pages that are free or can be made so."""
        return self.pool.free_pages + (self.cache.evictable_pages if self.cache else 0)

    @property
    def insertions(self) -> int:
        """Grows whenever a prefix is added, that is when a match may have become longer."""
        return self.cache.insertions if self.cache else 0

    def match(self, request: Request) -> PrefixMatch | None:
        """The cached prefix that a waiting request may use; None without a cache."""
        if self.cache is None:
            return None
        return self.cache.match_prefix(request.token_ids[: max(0, request.longest_prefix)], request.namespace)

    def attach(self, request: Request, match: PrefixMatch | None) -> None:
        """Begin a request's page table with a cached prefix, and lock it."""
        if match is None or self.cache is None:
            return
        table = request.page_table
        table.handle = self.cache.lock(match)
        table.pages.extend(match.pages)
        table.tree_pages = len(match.pages)
        request.num_computed = match.length

    def pages_needed(self, request: Request, tokens: int) -> int:
        """Pages that the request lacks for a context of `tokens` tokens."""
        lacking = self.pool.pages_for(tokens) - len(request.page_table.pages)
        return lacking if lacking > 0 else 0

    def room(self, request: Request) -> int:
        """Most tokens that the request could compute next with what it holds and what can be made free."""
        pages = len(request.page_table.pages) + self.available_pages
        return pages * self.page_size - request.next_start

    def _make_free(self, pages: int) -> None:
        """Evict so that `pages` pages are free, as far as there is something to evict."""
        lacking = pages - self.pool.free_pages
        if lacking > 0 and self.cache is not None:
            self.cache.evict(lacking)

    def reserve(self, request: Request, tokens: int) -> None:
        """Give the request pages for its next `tokens` tokens.

        Raises:
            EngineError: there are not so many; `room` says how many there are.
        """
        self.hand_out([(request, self.pages_needed(request, request.next_start + tokens))])

    def hand_out(self, needs: Sequence[tuple[Request, int]]) -> None:
        """Give each request so many more pages, evicting what is lacking.

        Raises:
            EngineError: there are not so many.
        """
        total = sum(count for _, count in needs)
        if not total:
            return
        self._make_free(total)
        pages = self.pool.alloc(total)
        first = 0
        for request, count in needs:
            if count == 1:  # a decode, as a rule
                request.page_table.pages.append(pages.item(first))
            elif count:
                request.page_table.pages.extend(pages[first : first + count])
            first += count

    def commit(self, request: Request) -> None:
        """Put the whole pages that the request has computed into the radix cache.

        The order matters. The new prefix is locked before the old lock is given back, and the page table points at the
        canonical pages before the request's own copies of them are freed.
        """
        table, cache = request.page_table, self.cache
        whole = request.num_computed // self.page_size
        if cache is None or whole <= table.tree_pages:
            return
        pages = table.pages.view[:whole]
        insertion = cache.insert(request.token_ids[: whole * self.page_size], pages, request.namespace)
        handle = cache.lock(insertion.match)
        if table.handle is not None:
            cache.unlock(table.handle)
        duplicates = pages[table.tree_pages : insertion.present].copy()
        pages[:] = insertion.match.pages
        table.handle, table.tree_pages = handle, whole
        self.pool.free_after_step(duplicates)

    def release(self, request: Request) -> None:
        """Take back all that a request holds, whatever ended it; what it computed stays in the radix cache."""
        self.commit(request)
        table = request.page_table
        own = table.own_pages.copy()
        if table.handle is not None and self.cache is not None:
            self.cache.unlock(table.handle)
        request.page_table = PageTable()
        request.num_computed = 0
        self.pool.free_after_step(own)

    def flush(self) -> int:
        """Drop every cached prefix that no running request uses; returns the number of tokens dropped."""
        return self.cache.flush() if self.cache else 0

    def describe(self, limit: int) -> CacheTree:
        """Up to `limit` nodes of the radix cache, the most used first; none without a cache."""
        return self.cache.describe(limit) if self.cache else CacheTree(())

    def check_idle(self) -> None:
        """Raise EngineError if pages were lost; to be called when no request holds any."""
        if self.available_pages != self.pool.num_pages:
            raise EngineError(f"{self.pool.num_pages - self.available_pages} pages of the KV pool were lost")

    def check_invariants(self, running: Iterable[Request]) -> None:
        """Raise AssertionError unless every page has one owner and every page table is in step with the cache."""
        tables = [(request, request.page_table) for request in running]
        owned = [table.own_pages for _, table in tables]
        self.pool.check_invariants()
        if self.cache is not None:
            self.cache.check_invariants()
            owned.append(self.cache.pages())
        self.pool.check_conservation(owned)
        for request, table in tables:
            assert request.num_computed <= len(table.pages) * self.page_size
            assert table.tree_pages * self.page_size <= request.num_computed
            assert (table.handle is None) == (self.cache is None)
            if table.handle is not None and self.cache is not None:
                assert np.array_equal(self.cache.path_pages(table.handle), table.pages.view[: table.tree_pages])
