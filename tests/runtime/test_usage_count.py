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


def test_a_prompt_without_tokens_counts_nothing() -> None:
    """Nothing is reused of nothing, whatever the cache says."""
    usage = UsageCount()
    usage.add_prompt(Prompt(ids(), ids()), 0)
    assert usage.nodes() == ()


def test_the_tokens_of_one_node_may_stand_in_several_places() -> None:
    """A node's tokens are added up from all of its places, and the cache may end within any of them."""
    usage = UsageCount()
    usage.add_prompt(Prompt(ids(1, 2, 3, 4, 5, 6), ids(7, 7, 2, 7, 7, 7)), 5)
    assert set(usage.nodes()) == {NodeUsage(7, computed=1, reused=4), NodeUsage(2, computed=0, reused=1)}
