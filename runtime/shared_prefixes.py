"""Who should wait for a prefix that another request is just computing."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np

from .request import Request

SHARED_TOKENS = 32
"""A shared prefix of so many tokens (or of half the prompt) is worth waiting a step for."""


class SharedPrefixes:
    """The prompts that running requests are still computing, to find the longest prefix shared with one of them.

    Of several requests that share a prefix that is not cached, one goes first and the others wait for its pages, also
    where all of them could begin in the same step. Made for one step.

    The prompts are kept in alphabetical order of their bytes, so that the one that shares most with another prompt is
    next to where that would stand.

    Args:
        prefilling: requests that compute their prompts now.
    """

    def __init__(self, page_size: int, prefilling: Iterable[Request]) -> None:
        self._page_size = page_size
        self._sorted: dict[str, list[tuple[bytes, int, Request]]] = {}  # by name space
        for request in prefilling:
            self.add(request)

    def add(self, request: Request) -> None:
        """Take in a request that begins to run."""
        entry = (request.token_ids[: request.path_end].tobytes(), request.arrival, request)
        bisect.insort(self._sorted.setdefault(request.namespace, []), entry, key=_bytes)

    def worth_waiting(self, request: Request, matched: int) -> Request | None:
        """Who of these is to compute a prefix that a waiting request should wait for; None where nobody is.

        That one has whole pages still to compute that the request could then take from the radix cache: at least
        `SHARED_TOKENS` tokens or half of its own. It runs, so the wait ends: the prefix is in the tree, or it is no
        longer being computed.

        Args:
            matched: tokens of the request's own that are in the radix cache now.
        """
        prompts = self._sorted.get(request.namespace)
        most = request.longest_prefix
        worthwhile = max(self._page_size, min(SHARED_TOKENS, len(request.token_ids) // 2))
        if not prompts or most - matched < worthwhile:
            return None
        own = request.token_ids[:most].tobytes()
        place = bisect.bisect(prompts, own, key=_bytes)
        for data, _, other in prompts[max(0, place - 1) : place + 1]:
            shared = _shared_bytes(own, data) // 4 // self._page_size * self._page_size
            if shared - matched >= worthwhile and other.num_computed < shared:
                return other
        return None


def _bytes(entry: tuple[bytes, int, Request]) -> bytes:
    return entry[0]


def _shared_bytes(left: bytes, right: bytes) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    a, b = np.frombuffer(left, np.uint8, length), np.frombuffer(right, np.uint8, length)
    return int((a != b).argmax())
