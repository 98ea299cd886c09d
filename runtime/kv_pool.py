"""Which pages of the KV cache are free. Pages are numbers here; their memory is the model runner's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from .batch import Int32Array
from .errors import EngineError


class KVPool:
    """The free list of `num_pages` pages of `page_size` tokens each.

    A page that is not free has exactly one owner: the radix cache, one running request, or the steps in flight, which
    return it when they are done.

    Raises:
        EngineError: a page is taken that is not there, or given back twice: a defect of the engine, not of a request.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise EngineError(f"a KV pool needs at least one page of one token, not {num_pages} pages of {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._stack: Int32Array = np.arange(num_pages - 1, -1, -1, dtype=np.int32)  # the top is at free_pages - 1
        self._is_free = np.ones(num_pages, dtype=np.bool_)
        self.free_pages = num_pages
        self._launched = self._done = 0
        self._later: deque[tuple[int, Int32Array]] = deque()
        self.returning_pages = 0

    def pages_for(self, tokens: int) -> int:
        """How many pages hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def alloc(self, count: int) -> Int32Array:
        """Take `count` pages out of the free list."""
        if count > self.free_pages:
            raise EngineError(f"{count} pages wanted, but {self.free_pages} of {self.num_pages} are free")
        left = self.free_pages - count
        pages = self._stack[left : self.free_pages][::-1].copy()
        self._is_free[pages] = False
        self.free_pages = left
        return pages

    def free(self, pages: Int32Array) -> None:
        """Give pages back."""
        end = self.free_pages + len(pages)
        if end > self.num_pages or self._is_free[pages].any():
            raise EngineError(f"pages given back twice: {pages[self._is_free[pages]].tolist()[:8]}")
        self._stack[self.free_pages : end] = pages
        self._is_free[pages] = True
        self.free_pages = end

    def free_after_step(self, pages: Int32Array) -> None:
        """Give pages back that the steps in flight may still read or write: they are free once those are done."""
        if self._launched == self._done:
            self.free(pages)
        elif len(pages):
            self._later.append((self._launched, pages))
            self.returning_pages += len(pages)

    def step_launched(self, step: int) -> None:
        """A step is in flight from now on. Steps are numbered in order, from 1."""
        self._launched = step

    def step_done(self, step: int) -> None:
        """A step, and so all before it, has ended."""
        self._done = step
        while self._later and self._later[0][0] <= step:
            _, pages = self._later.popleft()
            self.returning_pages -= len(pages)
            self.free(pages)

    def free_ids(self) -> Int32Array:
        """The pages that are free now."""
        return self._stack[: self.free_pages].copy()

    def check_invariants(self) -> None:
        """Raise AssertionError unless the free list holds every free page once."""
        listed = np.sort(self._stack[: self.free_pages])
        assert np.array_equal(listed, np.flatnonzero(self._is_free)), "the free list and its flags differ"
        assert self.returning_pages == sum(len(pages) for _, pages in self._later)
        assert self._launched > self._done or not self._later

    def check_conservation(self, owned: Iterable[Int32Array]) -> None:
        """Raise AssertionError unless every page is free or in exactly one of `owned`, one array an owner."""
        counts = self._is_free.astype(np.int64)
        for pages in (*owned, *(pages for _, pages in self._later)):
            np.add.at(counts, pages, 1)
        wrong = np.flatnonzero(counts != 1)
        assert not len(wrong), f"pages {wrong[:8].tolist()} have {counts[wrong[:8]].tolist()} owners"
