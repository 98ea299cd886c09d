"""Counts the tokens of a mock's programs as if a radix cache kept every branch."""

from __future__ import annotations

from collections.abc import Sequence

from palmette.runtime.program import Generate, Node, NodeUsage, Select, Text

from .mock_script import count_tokens


class UsageCounter:
    """Which nodes of one program have been computed."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def of(self, path: Sequence[Node], answer_tokens: int) -> tuple[NodeUsage, ...]:
        """Usage of the request for `path[0]`, the answering node; the rest of `path` leads from it to the root."""
        usage = [self._prompt_usage(node) for node in path[1:] if isinstance(node, Text | Generate | Select)]
        self._tokens[path[0].id] = answer_tokens
        return (*usage, NodeUsage(path[0].id, computed=answer_tokens))

    def _prompt_usage(self, node: Node) -> NodeUsage:
        if node.id in self._tokens:
            return NodeUsage(node.id, reused=self._tokens[node.id])
        self._tokens[node.id] = count_tokens(node.text) if isinstance(node, Text) else 0
        return NodeUsage(node.id, computed=self._tokens[node.id])
