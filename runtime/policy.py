"""Who is admitted next, and how many: orders of the waiting queue, and the budget of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from .config import Policy
from .kv_memory import KVMemory
from .request import Request

MAX_OVERTAKES = 64
"""A request that so many later arrivals were admitted before is *aged*: it goes first and is never held."""

WINDOW = 128
"""Longest prefix match looks at so many of the oldest waiting requests, so that a long queue costs no time."""

SHARED_TOKENS = 32
"""A shared prefix of so many tokens (or of half the prompt) is worth waiting a step for."""

EXPECTED_OUTPUT_LIMIT = 4096
"""Most output tokens that are planned for one request, however large its max_tokens."""


def is_aged(request: Request) -> bool:
    """Whether the request was overtaken so often that nobody may overtake it again."""
    return request.overtaken >= MAX_OVERTAKES


# -- order ----------------------------------------------------------------------------------------------------------


class QueuePolicy(Protocol):
    """The order in which waiting requests are offered to a step's budget.

    The first that does not fit ends the step's admission, so nobody behind it takes the memory it waits for.
    """

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        """Some or all of `waiting` (oldest first) in the order to admit them; the oldest is always among them."""


class FirstComeFirstServed:
    """Oldest first."""

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        return list(waiting)


class LongestPrefixMatch:
    """Longest cached prefix first, siblings next to each other, and aged requests before all others.

    Nobody starves. A waiting request is overtaken by at most `MAX_OVERTAKES` later arrivals and those admitted in the
    same step as the last of them. From then on it goes first, in order of arrival among the aged, and while it does not
    fit nothing else is admitted, so the running requests end and make room for it.

    Args:
        match_length: tokens of a request's prompt that are in the radix cache.
        insertions: a count that grows whenever a match may have become longer; lengths are looked up anew then.
    """

    def __init__(self, match_length: Callable[[Request], int], insertions: Callable[[], int]) -> None:
        self._match_length = match_length
        self._insertions = insertions
        self._known: dict[str, int] = {}
        self._known_at = -1

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        oldest = waiting[:WINDOW]
        aged = [request for request in oldest if is_aged(request)]
        others = [request for request in oldest if not is_aged(request)]
        if self._insertions() != self._known_at or len(self._known) > 4 * WINDOW:
            self._known.clear()
            self._known_at = self._insertions()
        others.sort(key=self._length, reverse=True)  # stable, so that equals stay in order of arrival
        return aged + siblings_together(others)

    def _length(self, request: Request) -> int:
        known = self._known.get(request.id)
        if known is None:
            known = self._known[request.id] = self._match_length(request)
        return known


def siblings_together(ordered: Sequence[Request]) -> list[Request]:
    """Move the members of each group up to the first of them, in their order."""
    groups: dict[str, list[Request]] = {}
    for request in ordered:
        groups.setdefault(request.group or request.id, []).append(request)
    return [request for group in groups.values() for request in group]


def queue_policy(name: Policy, memory: KVMemory) -> QueuePolicy:
    """The policy that `EngineConfig.policy` names. Without a radix cache there is no prefix to match."""
    if name == "fcfs" or memory.cache is None:
        return FirstComeFirstServed()
    return LongestPrefixMatch(memory.match_length, lambda: memory.insertions)


# -- holding --------------------------------------------------------------------------------------------------------


def awaits_shared_prefix(request: Request, matched: int, prefilling: Iterable[Request], page_size: int) -> bool:
    """Whether a waiting request should wait for a prefix that another one is just computing.

    True where one of `prefilling` is still to compute whole pages that the request could then take from the radix
    cache: at least `SHARED_TOKENS` tokens or half of its own. The other one runs, so the wait ends: the prefix is in
    the tree, or the other one no longer computes it. An aged request never waits.

    Args:
        matched: tokens of the request's own that are in the radix cache now.
    """
    if is_aged(request):
        return False
    worthwhile = max(page_size, min(SHARED_TOKENS, len(request.token_ids) // 2))
    most = request.longest_prefix
    for other in prefilling:
        if min(most, other.end) - matched < worthwhile:
            continue
        shared = min(_common_length(request, other), most, other.end) // page_size * page_size
        if shared - matched >= worthwhile and other.num_computed < shared:
            return True
    return False


def _common_length(left: Request, right: Request) -> int:
    a, b = left.token_ids, right.token_ids
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    first = int(different.argmax())
    return first if different[first] else length


# -- budget ---------------------------------------------------------------------------------------------------------


class OutputEstimate:
    """How much of its allowed output a request is expected to use; learned from how often memory ran out.

    The ratio falls a little with every step and rises when a request had to be retracted.
    """

    START = 0.7
    LOWEST = 0.1
    FALL = 0.001
    RISE = 0.1

    def __init__(self) -> None:
        self.ratio = self.START

    def step_done(self) -> None:
        self.ratio = max(self.LOWEST, self.ratio - self.FALL)

    def retracted(self) -> None:
        self.ratio = min(1.0, self.ratio + self.RISE)

    def final_length(self, request: Request) -> int:
        """Tokens of context that the request is expected to end with."""
        if request.kind == "score":
            return request.end
        expected = math.ceil(self.ratio * min(request.tokens_left, EXPECTED_OUTPUT_LIMIT))
        return request.end + expected


class AdmissionBudget:
    """What one step may still admit. Made for the step and thrown away.

    Pages count as available when they are free or evictable and no running request is expected to need them.

    Args:
        tokens: that the step may still compute.
        slots: requests that may still begin to run.
        running: requests that run already, with the pages of this step.
    """

    def __init__(
        self, memory: KVMemory, estimate: OutputEstimate, *, tokens: int, slots: int, running: Sequence[Request]
    ) -> None:
        self._memory = memory
        self._estimate = estimate
        self._alone = not running
        self._reserved = sum(self._expected_pages(request) for request in running)
        self.tokens = tokens
        self.slots = slots

    @property
    def is_spent(self) -> bool:
        return self.tokens <= 0 or self.slots <= 0

    @property
    def nothing_runs(self) -> bool:
        """Whether the next request would be the only one; it then needs room for what is known of it and no more."""
        return self._alone

    def fits(self, request: Request) -> bool:
        """Whether there are pages for a request whose cached prefix is locked already."""
        if self._alone:
            return self._memory.pages_needed(request, request.end) <= self._memory.available_pages
        return self._expected_pages(request) + self._reserved <= self._memory.available_pages

    def take(self, request: Request) -> int:
        """Admit the request; returns how many tokens of it the step computes."""
        count = min(request.remaining, self.tokens)
        self._reserved += self._expected_pages(request)
        self._alone = False
        self.tokens -= count
        self.slots -= 1
        return count

    def _expected_pages(self, request: Request) -> int:
        return self._memory.pages_needed(request, self._estimate.final_length(request))
