"""Who holds which page: the pool, the radix cache and the page tables of running requests, kept in step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .clock import Clock, MonotonicClock
from .errors import EngineError
from .kept_prefixes import KeptPrefixes
from .kv_pool import KVPool
from .messages import CacheTree
from .program_table import Program, ProgramTable
from .radix_cache import RadixCache
from .radix_node import PrefixMatch
from .request import PageTable, Request


class KVMemory:
    """The KV cache as requests see it: attach a cached prefix, reserve room, commit what was computed, release.

    Args:
        radix_cache: False keeps no prefixes: a request's pages go straight back to the pool.
        programs: that requests belong to, where they do.
        keep_prefixes: keep those that programs will go on from.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        radix_cache: bool = True,
        programs: ProgramTable | None = None,
        keep_prefixes: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.pool = KVPool(num_pages, page_size)
        self.page_size = page_size
        self.cache = RadixCache(self.pool) if radix_cache else None
        self.programs = ProgramTable() if programs is None else programs
        self.kept: KeptPrefixes | None = None
        if self.cache is not None and keep_prefixes:
            self.kept = KeptPrefixes(self.cache, self.programs, self.pool_tokens, clock or MonotonicClock())

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
        """Pages that the request lacks for its first `tokens` tokens."""
        lacking = request.pages_for(tokens, self.page_size) - len(request.page_table.pages)
        return lacking if lacking > 0 else 0

    def make_available(self, pages: int, *, after: Program | None = None) -> bool:
        """Have `pages` pages that are free or can be made so; whether there are so many.

        Where they are lacking, prefixes that are kept for programs are given up: any, or with `after` those of programs
        that came after it.
        """
        if pages <= self.available_pages:
            return True
        return self.kept is not None and self.kept.give_up_any(lambda: pages <= self.available_pages, after=after)

    def make_spare(self, pages: int) -> bool:
        """Have `pages` pages beyond those that programs which have begun need yet; whether there are so many.

        Only prefixes that are not worth their room are given up.
        """
        if self.kept is None:
            return pages <= self.available_pages
        pages += int(self.programs.promised) // self.page_size
        return pages <= self.available_pages or self.kept.give_up_stale(lambda: pages <= self.available_pages)

    def usual_pages(self, request: Request) -> int:
        """Pages that all requests of its program together take as a rule, as far as that is known."""
        room = request.program.kind.room.value if request.program is not None else 0.0
        return int(room) // self.page_size

    def expect(self, request: Request, pages: int) -> None:
        """A request begins to run and is expected to take so many pages."""
        if request.program is not None:
            tokens = pages * self.page_size if request.started_s is None else 0
            request.expected_room += tokens
            self.programs.begin(request.program, tokens)

    def keep(self, request: Request) -> None:
        """Keep the prefix that a request of a program has computed when it is released, for what continues it."""
        program, table = request.program, request.page_table
        if self.kept is None or program is None or program.ended:
            return
        self.commit(request)
        if table.handle is not None:
            self.kept.add(program, request.id, table.handle)
            table.handle = None

    def left(self, request: Request) -> None:
        """A request has ended, and what is kept of it was kept."""
        self.programs.leave(request)
        if self.kept is not None and request.program is not None:
            self.kept.left(request.program)

    def room(self, request: Request) -> int:
        """Most tokens that the request could compute next with what it holds and what can be made free."""
        pages = len(request.page_table.pages) + self.available_pages
        return request.tokens_within(pages, self.page_size) - request.next_start

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
        whole = min(request.num_computed, request.path_end) // self.page_size
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
        if self.kept is not None:
            self.kept.clear()
        return self.cache.flush() if self.cache else 0

    def describe(self, limit: int) -> CacheTree:
        """Up to `limit` nodes of the radix cache, the most used first; none without a cache."""
        return self.cache.describe(limit) if self.cache else CacheTree(())

    def check_idle(self) -> None:
        """Raise EngineError if pages were lost; to be called when no request holds any."""
        kept = self.cache.protected_pages if self.cache and self.kept is not None and len(self.kept) else 0
        if self.available_pages + kept != self.pool.num_pages:
            raise EngineError(f"{self.pool.num_pages - self.available_pages - kept} pages of the KV pool were lost")

    def check_invariants(self, running: Iterable[Request]) -> None:
        """Raise AssertionError unless every page has one owner and every page table is in step with the cache."""
        tables = [(request, request.page_table) for request in running]
        owned = [table.own_pages for _, table in tables]
        self.pool.check_invariants()
        if self.cache is not None:
            self.cache.check_invariants()
            owned.append(self.cache.pages())
        if self.kept is not None:
            self.kept.check_invariants()
        self.pool.check_conservation(owned)
        for request, table in tables:
            assert request.num_computed <= len(table.pages) * self.page_size
            assert table.tree_pages * self.page_size <= request.num_computed
            assert (table.handle is None) == (self.cache is None)
            if table.handle is not None and self.cache is not None:
                assert np.array_equal(self.cache.path_pages(table.handle), table.pages.view[: table.tree_pages])
