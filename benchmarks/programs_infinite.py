"""The hit rate that a cache without an end would have had, for the requests that a system ran.

Counted in tokens, in the order in which the requests began: a token of a prompt hits where it and all before it stood
at the beginning of a prompt that began earlier, or of one that ended earlier with its answer. The last token of a
prompt is computed in any case. Requests that begin in one step count in the order of their arrival, so of siblings that
begin together with a new prefix, one computes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from palmette.runtime.batch import Int32Array

_BLOCK = 16


@dataclass(slots=True)
class RunRequest:
    """What is kept of a request: when it came, began and ended, and its tokens."""

    prompt_ids: Int32Array
    arrived_s: float
    started_s: float = 0.0
    ended_s: float = 0.0
    cached_tokens: int = 0
    output_ids: tuple[int, ...] = ()


def hit_rate(requests: Iterable[RunRequest]) -> float:
    """The part of all prompt tokens that was in the radix cache."""
    known = list(requests)
    return sum(each.cached_tokens for each in known) / max(1, sum(len(each.prompt_ids) for each in known))


def optimal_hit_rate(requests: Iterable[RunRequest]) -> float:
    """The part of all prompt tokens that would have been in a cache without an end."""
    known = list(requests)
    cache = _InfiniteCache()
    hits = 0
    for request, begins in _in_order(known):
        if begins:
            hits += min(cache.match(request.prompt_ids), len(request.prompt_ids) - 1)
            cache.insert(request.prompt_ids)
        else:
            cache.insert(np.concatenate((request.prompt_ids, np.array(request.output_ids, dtype=np.int32))))
    return hits / max(1, sum(len(each.prompt_ids) for each in known))


def _in_order(requests: list[RunRequest]) -> Iterator[tuple[RunRequest, bool]]:
    """Each request when it begins, and when it ends with an answer that others may continue."""
    moments = [(each.started_s, 1, place, each) for place, each in enumerate(requests)]
    moments += [(each.ended_s, 0, place, each) for place, each in enumerate(requests) if each.output_ids]
    for _, begins, _, request in sorted(moments, key=lambda moment: moment[:3]):
        yield request, bool(begins)


class _InfiniteCache:
    """Prefixes by blocks; what follows each is kept by its first token as well, to find a part of a block."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, bytes], int] = {}
        self._tails: dict[int, dict[int, list[bytes]]] = {}
        self._count = 0

    def match(self, token_ids: Int32Array) -> int:
        """How many of the first tokens are known."""
        at, place = 0, 0
        data = token_ids.tobytes()
        size = 4 * _BLOCK
        while (following := self._blocks.get((at, data[place : place + size]))) is not None:
            at, place = following, place + size
        rest = data[place : place + size]
        ends = self._tails.get(at, {}).get(int(token_ids[place // 4]), ()) if rest else ()
        return place // 4 + max((_common(rest, end) for end in ends), default=0)

    def insert(self, token_ids: Int32Array) -> None:
        """Take a sequence in."""
        data, at, size = token_ids.tobytes(), 0, 4 * _BLOCK
        for place in range(0, len(data), size):
            block = data[place : place + size]
            following = self._blocks.get((at, block))
            if following is None:
                ends = self._tails.setdefault(at, {}).setdefault(int(token_ids[place // 4]), [])
                if block not in ends:
                    ends.append(block)
                if len(block) < size:
                    return
                self._count += 1
                following = self._blocks[at, block] = self._count
            at = following


def _common(left: bytes, right: bytes) -> int:
    """How many tokens two runs begin with alike."""
    length = min(len(left), len(right)) // 4
    for place in range(length):
        if left[4 * place : 4 * place + 4] != right[4 * place : 4 * place + 4]:
            return place
    return length
