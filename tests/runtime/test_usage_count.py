"""Tokens by node."""

from __future__ import annotations

from tests.fake_runner import ids

from palmette.runtime.context import NO_OWNER, Prompt
from palmette.runtime.program import NodeUsage
from palmette.runtime.usage_count import UsageCount


def test_a_prompts_tokens_are_reused_up_to_where_the_cache_reached() -> None:
    """Counts of several requests add up by node; tokens that belong to no node are left out."""
    prompt = Prompt(ids(1, 5, 6, 7, 8), ids(NO_OWNER, 0, 0, 3, 3))
    usage = UsageCount()
    usage.add_prompt(prompt, 0)
    usage.add_prompt(prompt, 4)
    usage.add_output(9, sampled=3, forced=2)
    usage.add_output(9, sampled=1, forced=0)
    assert sorted(usage.nodes(), key=lambda each: each.node) == [
        NodeUsage(0, computed=2, reused=2),
        NodeUsage(3, computed=3, reused=1),
        NodeUsage(9, computed=4, forced=2),
    ]
