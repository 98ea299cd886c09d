"""Counts the tokens of a mock's programs as if a radix cache kept every branch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from palmette.runtime.program import NodeUsage

_WORD = re.compile(r"\s*\S+|\s+")


def tokens_of(text: str) -> list[str]:
    """Words with the space before them: a mock's tokens."""
    return _WORD.findall(text)


def count_tokens(text: str) -> int:
    """How many tokens a mock makes of a text."""
    return len(tokens_of(text))


class UsageCounter:
    """Which nodes of one program have been computed."""

    def __init__(self) -> None:
        self._reused: dict[int, NodeUsage] = {}  # what later requests say of a node that is computed

    def of_prompt(self, path: Iterable[tuple[int, str]]) -> tuple[NodeUsage, ...]:
        """Usage of the nodes before an answer, given as (id, the text that it adds); they are computed from now on."""
        reused = self._reused
        return tuple(reused[node] if node in reused else self._compute(node, count_tokens(text)) for node, text in path)

    def of_answer(self, node: int, tokens: int) -> NodeUsage:
        """Usage of the answering node."""
        return self._compute(node, tokens)

    def _compute(self, node: int, tokens: int) -> NodeUsage:
        self._reused[node] = NodeUsage(node, reused=tokens)
        return NodeUsage(node, computed=tokens)
