"""Orders of the waiting queue: who begins out of turn."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Protocol

from .admission import OutputEstimate
from .config import Policy
from .kv_memory import KVMemory
from .program_table import work_of
from .radix_node import RadixNode
from .request import Request

WINDOW = 128
"""Policies look at so many of the waiting requests whose turn comes first, so that a long queue costs no time."""

REFRESHED = 48
"""Longest prefix match looks so many prefixes up anew in one step."""


WEIGHED = 80
"""Requests whose weight counts in one step; those behind them follow in turn."""


class QueuePolicy(Protocol):
    """The order in which waiting requests are offered to a step's budget.

    The first that does not fit ends the step's admission, so nobody behind it takes the memory it waits for. Ageing and
    priorities are not its business: it is given up to `WINDOW` requests of one priority that may be passed over.
    """

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        """`waiting`, which are in turn, in the order to admit them."""


class FirstComeFirstServed:
    """In turn."""

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        return list(waiting)


class RandomOrder:
    """In random order; the same for the same seed."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        return self._source.sample(waiting, len(waiting))


class LongestPrefixMatch:
    """Longest cached prefix first, equals in turn, siblings next to each other."""

    def __init__(self, memory: KVMemory) -> None:
        self._cached = CachedLengths(memory)

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        self._cached.refresh(waiting)
        return siblings_together(sorted(waiting, key=self._cached.__getitem__, reverse=True))


class CachedLengths:
    """Lengths of the cached prefixes of waiting requests, as they were not long ago.

    When the cache changes, lengths become out of date. Each time `REFRESHED` of them are looked up anew, those first
    that are known longest, so that the cost of a step is bounded. An old length only means another order: what a
    request takes from the cache is looked up when it begins.
    """

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._known: dict[str, tuple[int, int]] = {}  # by request: the insertions when it was looked up; the length

    def __getitem__(self, request: Request) -> int:
        return self._known[request.id][1]

    def refresh(self, waiting: Sequence[Request]) -> None:
        """Know the lengths of these requests, and of others no longer than need be."""
        insertions = self._memory.insertions
        if len(self._known) > 4 * WINDOW:
            self._known.clear()
        stale = []
        for request in waiting:
            known = self._known.get(request.id)
            if known is None:
                self._look_up(request)
            elif known[0] != insertions:
                stale.append(request)
        if len(stale) > REFRESHED:
            stale.sort(key=lambda request: self._known[request.id][0])
        for request in stale[:REFRESHED]:
            self._look_up(request)

    def _look_up(self, request: Request) -> None:
        match = self._memory.match(request)
        self._known[request.id] = self._memory.insertions, match.length if match else 0


class LeastWorkFirst:
    """Programs that have least left to compute first, equals in turn, siblings next to each other.

    What is left of a program is the larger of two: what is known of it (this request, without what is cached, and the
    calls that come after it), and what its earlier runs took more than it has taken yet. A request of no program is a
    program of its own.
    """

    def __init__(self, memory: KVMemory, estimate: OutputEstimate) -> None:
        self._cached = CachedLengths(memory)
        self._estimate = estimate

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        self._cached.refresh(waiting)
        return siblings_together(sorted(waiting, key=self._work_left))

    def _work_left(self, request: Request) -> float:
        prompt = request.end - self._cached[request]
        output = self._estimate.ratio * request.tokens_left if request.kind == "generate" else 0.0
        own = work_of(prompt + output, output)
        if request.program is None:
            return own
        later = self._estimate.ratio * request.program.later_tokens
        return max(own + work_of(later, later), request.program.work_left)


class HeaviestSubtreeFirst:
    """Through the radix cache, depth first, the subtree that most requests wait for first.

    A request is at the node where its cached prefix ends and weighs on all nodes up to the root. Requests at a node go
    before those below it. So the requests of one subtree follow each other while its pages are in use.

    Source: the DFS-weight order of SGLang's scheduler.
    """

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory

    def order(self, waiting: Sequence[Request]) -> list[Request]:
        at: dict[RadixNode, list[Request]] = {}
        without: list[Request] = []  # they find nothing
        for request in waiting[:WEIGHED]:
            match = self._memory.match(request)
            (at.setdefault(match.node, []) if match and match.length else without).append(request)
        weights = _weights(at)
        roots = [node for node in weights if node.parent not in weights]
        return (
            [request for node in _depth_first(roots, weights) for request in at.get(node, ())]
            + without
            + [*waiting[WEIGHED:]]
        )


def _weights(at: dict[RadixNode, list[Request]]) -> dict[RadixNode, int]:
    """How many requests weigh on each node; nodes are in the order in which their first request is. No root."""
    weights: dict[RadixNode, int] = {}
    for node, requests in at.items():
        step = node
        while step.parent is not None:
            weights[step] = weights.get(step, 0) + len(requests)
            step = step.parent
    return weights


def _depth_first(roots: Sequence[RadixNode], weights: dict[RadixNode, int]) -> Iterable[RadixNode]:
    below: dict[RadixNode, list[RadixNode]] = {}
    for node in weights:
        if node.parent in weights:
            below.setdefault(node.parent, []).append(node)
    stack = sorted(roots, key=weights.__getitem__)
    while stack:
        node = stack.pop()
        yield node
        stack.extend(sorted(below.get(node, ()), key=weights.__getitem__))


def siblings_together(ordered: Sequence[Request]) -> list[Request]:
    """Move the members of each group up to the first of them, in their order."""
    groups: dict[str, list[Request]] = {}
    for request in ordered:
        groups.setdefault(request.group or request.id, []).append(request)
    return [request for group in groups.values() for request in group]


def queue_policy(name: Policy, memory: KVMemory, estimate: OutputEstimate, seed: int | None = None) -> QueuePolicy:
    """The policy that `EngineConfig.policy` names. Without a radix cache there is no prefix to match."""
    if name == "random":
        return RandomOrder(random.Random(seed))
    if name == "least-work":
        return LeastWorkFirst(memory, estimate)
    if name == "fcfs" or memory.cache is None:
        return FirstComeFirstServed()
    return LongestPrefixMatch(memory) if name == "lpm" else HeaviestSubtreeFirst(memory)
