"""Order of the waiting queue, holding for a shared prefix, and the budget of a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import make_request

from palmette.runtime.kv_memory import KVMemory
from palmette.runtime.policy import (
    MAX_OVERTAKES,
    SHARED_TOKENS,
    WINDOW,
    AdmissionBudget,
    FirstComeFirstServed,
    LongestPrefixMatch,
    OutputEstimate,
    awaits_shared_prefix,
    queue_policy,
    siblings_together,
)
from palmette.runtime.request import Request


def requests(*lengths: int, groups: str = "") -> list[Request]:
    """Requests with these prompt lengths, in order of arrival; groups[i] names the group of the i-th."""
    made = [
        make_request(str(i), [3] * n, group=groups[i] if groups and groups[i] != "-" else None)
        for i, n in enumerate(lengths)
    ]
    for arrival, request in enumerate(made):
        request.arrival = arrival
    return made


def names(ordered: list[Request]) -> str:
    return "".join(request.id for request in ordered)


def longest_first(*, insertions: int = 0) -> LongestPrefixMatch:
    """The policy with the prompt length as match length."""
    return LongestPrefixMatch(lambda request: len(request.prompt_ids), lambda: insertions)


def test_fcfs_keeps_the_order_of_arrival() -> None:
    """First come, first served."""
    assert names(FirstComeFirstServed().order(requests(1, 9, 5))) == "012"


def test_lpm_takes_the_longest_match_first() -> None:
    """Longest match first; equals in order of arrival."""
    assert names(longest_first().order(requests(1, 9, 5, 9))) == "1320"


def test_lpm_keeps_siblings_together() -> None:
    """A group follows its best member."""
    assert names(longest_first().order(requests(1, 9, 5, 8, groups="a-ba"))) == "1302"
    assert names(siblings_together(requests(1, 1, 1, 1, groups="abab"))) == "0213"


def test_aged_requests_go_first() -> None:
    """Who was overtaken to the bound goes before any match, oldest first."""
    waiting = requests(1, 9, 2, 8)
    waiting[0].overtaken = waiting[2].overtaken = MAX_OVERTAKES
    assert names(longest_first().order(waiting)) == "0213"


def test_lpm_looks_at_the_oldest_only() -> None:
    """A long queue costs no more than the window, and the oldest is in it."""
    ordered = longest_first().order(requests(*range(1, 2 * WINDOW)))
    assert len(ordered) == WINDOW
    assert {request.arrival for request in ordered} == set(range(WINDOW))


def test_lengths_are_looked_up_anew_when_the_tree_grew() -> None:
    """Match lengths are kept until something was inserted."""
    lookups, insertions = 0, 0

    def length(request: Request) -> int:
        nonlocal lookups
        lookups += 1
        return 0

    policy, waiting = LongestPrefixMatch(length, lambda: insertions), requests(1, 2)
    policy.order(waiting)
    policy.order(waiting)
    assert lookups == 2
    insertions = 1
    policy.order(waiting)
    assert lookups == 4


def test_lengths_of_requests_long_gone_are_forgotten() -> None:
    """Where nothing new enters the tree, the lengths kept stay bounded all the same."""
    policy = longest_first()
    for i in range(1000):
        policy.order([make_request(str(i), [3])])
    assert len(policy._known) <= 5 * WINDOW


def test_without_a_cache_there_is_nothing_to_match() -> None:
    """LPM falls back to the order of arrival where the radix cache is off."""
    assert isinstance(queue_policy("lpm", KVMemory(4, 1, radix_cache=False)), FirstComeFirstServed)
    assert isinstance(queue_policy("lpm", KVMemory(4, 1)), LongestPrefixMatch)
    assert isinstance(queue_policy("fcfs", KVMemory(4, 1)), FirstComeFirstServed)


@pytest.mark.parametrize(
    ("shared", "own", "matched", "page_size", "waits"),
    [
        (SHARED_TOKENS, 40, 0, 1, True),
        (SHARED_TOKENS - 1, 40, 0, 1, False),
        (SHARED_TOKENS + 8, 40, 8, 1, True),
        (SHARED_TOKENS + 8, 40, 9, 1, False),
        (6, 5, 0, 1, True),  # half of a short prompt
        (5, 7, 0, 1, False),
        (6, 5, 0, 16, False),  # not a page
        (40, 5, 0, 16, True),
    ],
)
def test_waiting_for_a_shared_prefix(shared: int, own: int, matched: int, page_size: int, waits: bool) -> None:
    """A request waits for 32 shared tokens or half its prompt, at least a page, that another is about to compute."""
    other = make_request("a", [3] * shared + [4] * 50)
    request = make_request("b", [3] * shared + [5] * own)
    assert awaits_shared_prefix(request, matched, [other], page_size) is waits


def test_nobody_waits_for_what_is_computed_already() -> None:
    """Once the other one is past the shared prefix there is nothing to wait for."""
    other, request = make_request("a", [3] * 40 + [4]), make_request("b", [3] * 40 + [5])
    other.num_computed = 40
    assert not awaits_shared_prefix(request, 0, [other], 1)
    assert not awaits_shared_prefix(request, 0, [], 1)


def test_an_aged_request_waits_for_nobody() -> None:
    """Holding has the same bound as overtaking."""
    other, request = make_request("a", [3] * 40 + [4]), make_request("b", [3] * 40 + [5])
    request.overtaken = MAX_OVERTAKES
    assert not awaits_shared_prefix(request, 0, [other], 1)


def test_a_score_request_waits_only_for_what_it_may_reuse() -> None:
    """Scoring computes from score_from - 1 on, so a shared prefix behind that is no reason to wait."""
    other = make_request("a", [3] * 90)
    early = make_request("b", [3] * 80 + [5], kind="score", score_from=3)
    late = make_request("b", [3] * 80 + [5], kind="score", score_from=75)
    assert not awaits_shared_prefix(early, 0, [other], 1)
    assert awaits_shared_prefix(late, 0, [other], 1)


def budget(memory: KVMemory, running: list[Request], *, tokens: int = 64, slots: int = 8) -> AdmissionBudget:
    return AdmissionBudget(memory, OutputEstimate(), tokens=tokens, slots=slots, running=running)


def test_the_budget_reserves_for_what_runs() -> None:
    """Pages that running requests are expected to need are not given away."""
    memory = KVMemory(40, 1)
    running, new = make_request("a", [3] * 10, max_tokens=20), make_request("b", [3] * 12, max_tokens=1)
    assert budget(memory, [running]).fits(new)  # 10 + 14 expected, 12 + 1 new
    running = make_request("a", [3] * 10, max_tokens=30)
    assert not budget(memory, [running]).fits(new)


def test_a_lone_request_needs_only_what_is_known_of_it() -> None:
    """Where nothing runs, the expected output keeps nobody out, so admission cannot come to a stop."""
    memory = KVMemory(12, 1)
    request = make_request("a", [3] * 12, max_tokens=100)
    alone = budget(memory, [])
    assert alone.nothing_runs
    assert alone.fits(request)
    assert not budget(memory, []).fits(make_request("b", [3] * 13))


def test_taking_spends_the_budget() -> None:
    """Tokens and slots run out; a longer prompt takes what is left of the step."""
    spent = budget(KVMemory(1000, 1), [], tokens=10, slots=3)
    assert spent.take(make_request("a", [3] * 7)) == 7
    assert not spent.is_spent
    assert not spent.nothing_runs
    assert spent.take(make_request("b", [3] * 7)) == 3
    assert spent.is_spent
    assert budget(KVMemory(4, 1), [], slots=0).is_spent


@given(st.lists(st.booleans(), max_size=200))
def test_the_estimate_stays_a_fraction(retractions: list[bool]) -> None:
    """The expected share of max_tokens falls step by step, rises with retractions, and stays within its bounds."""
    estimate = OutputEstimate()
    for retraction in retractions:
        before = estimate.ratio
        if retraction:
            estimate.retracted()
            assert estimate.ratio > before or estimate.ratio == 1
        else:
            estimate.step_done()
            assert estimate.ratio < before or estimate.ratio == estimate.LOWEST
        assert estimate.LOWEST <= estimate.ratio <= 1


def test_a_score_request_is_expected_to_end_with_its_prompt() -> None:
    """Scoring has no output to plan for."""
    request = make_request("a", [3] * 9, kind="score", score_from=2, max_tokens=100)
    assert OutputEstimate().final_length(request) == 8
