"""Adds up, by node, the tokens that a node's requests computed, reused and were forced to take."""

from __future__ import annotations

import numpy as np

from .context import NO_OWNER, Prompt
from .program import NodeUsage


class UsageCount:
    """Counts of one job, over all of its requests."""

    def __init__(self) -> None:
        self._counts: dict[int, list[int]] = {}

    def add_prompt(self, prompt: Prompt, cached: int) -> None:
        """Count a prompt whose first `cached` tokens came from the radix cache."""
        owners = prompt.owners
        changes = np.flatnonzero(owners[1:] != owners[:-1]) + 1
        first = 0
        for end in (*changes.tolist(), len(owners)) if len(owners) else ():  # a run of tokens of one owner
            reused = min(max(cached - first, 0), end - first)
            row = self._row(owners.item(first))
            row[0] += end - first - reused
            row[1] += reused
            first = end

    def add_output(self, node: int, sampled: int, forced: int) -> None:
        """Count output tokens of a node."""
        self._row(node)[0] += sampled
        self._row(node)[2] += forced

    def nodes(self) -> tuple[NodeUsage, ...]:
        """The counts of every node that has any."""
        return tuple(NodeUsage(node, *row) for node, row in self._counts.items() if node != NO_OWNER)

    def _row(self, node: int) -> list[int]:
        return self._counts.setdefault(node, [0, 0, 0])
