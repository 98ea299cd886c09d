"""Waiting for a prefix that another request is computing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import FakeEngine, make_request
from tests.scheduler_examples import PREFIX, prompt

from palmette.runtime.request import Request
from palmette.runtime.shared_prefixes import SHARED_TOKENS, SharedPrefixes


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
    assert (SharedPrefixes(page_size, [other]).worth_waiting(request, matched) is other) is waits


def test_nobody_waits_for_what_is_computed_already() -> None:
    """Once the other one is past the shared prefix there is nothing to wait for."""
    other, request = make_request("a", [3] * 40 + [4]), make_request("b", [3] * 40 + [5])
    other.num_computed = 40
    assert not SharedPrefixes(1, [other]).worth_waiting(request, 0)
    assert not SharedPrefixes(1, []).worth_waiting(request, 0)


def test_a_score_request_waits_only_for_what_it_may_reuse() -> None:
    """Scoring computes from score_from - 1 on, so a shared prefix behind that is no reason to wait."""
    other = make_request("a", [3] * 90)
    early = make_request("b", [3] * 80 + [5], kind="score", score_from=3)
    late = make_request("b", [3] * 80 + [5], kind="score", score_from=75)
    assert not SharedPrefixes(1, [other]).worth_waiting(early, 0)
    assert SharedPrefixes(1, [other]).worth_waiting(late, 0)


def test_nobody_waits_for_another_name_space() -> None:
    """Pages of another name space could not be taken."""
    other, request = make_request("a", [3] * 40 + [4]), make_request("b", [3] * 40 + [5])
    other.namespace = "x"
    assert not SharedPrefixes(1, [other]).worth_waiting(request, 0)
    request.namespace = "x"
    assert SharedPrefixes(1, [other]).worth_waiting(request, 0)


def by_comparing_all(request: Request, others: list[Request], matched: int, page_size: int) -> bool:
    """The definition: is there a request with enough to share?"""
    worthwhile = max(page_size, min(SHARED_TOKENS, len(request.token_ids) // 2))
    for other in others:
        most, shared = min(request.longest_prefix, other.end), 0
        while shared < most and request.token_ids[shared] == other.token_ids[shared]:
            shared += 1
        if shared // page_size * page_size - matched >= worthwhile:
            return True
    return False


PROMPTS = st.builds(
    lambda trunk, tail: [256 + trunk] * 5 + tail,
    st.integers(0, 2),
    st.lists(st.sampled_from([3, 256, 259, 65536]), min_size=1, max_size=12),
)


@given(st.lists(PROMPTS, max_size=8), PROMPTS, st.integers(0, 4), st.sampled_from([1, 2, 4]))
def test_the_best_of_many_is_found(others: list[list[int]], own: list[int], matched: int, page_size: int) -> None:
    """Looking at the neighbours in alphabetical order finds what comparing with every prompt finds."""
    made = [make_request(str(i), other) for i, other in enumerate(others)]
    request = make_request("r", own)
    found = SharedPrefixes(page_size, made).worth_waiting(request, matched)
    assert (found is not None) is by_comparing_all(request, made, matched, page_size)


def test_of_many_in_one_step_one_of_each_prefix_goes_first() -> None:
    """Requests with four prefixes come at once: each prefix is computed once, all four side by side."""
    engine = FakeEngine(num_pages=4096)
    trunks = [prompt(seed, 200) for seed in range(4)]
    made = [make_request(str(i), [*trunks[i % 4], 3 + i, 5], max_tokens=2, ignore_eos=True) for i in range(40)]
    engine.add(*made)
    engine.step()
    assert engine.scheduler.stats().running == 4
    engine.run()
    assert sum(request.cached_tokens == 200 for request in made) == 36
    for request in made:
        engine.check_answer(request)


def test_an_aged_request_waits_for_a_prefix_once() -> None:
    """A young one may wait for any number of others; an aged one for the first only, so that its wait is bounded."""
    queue = FakeEngine().scheduler._waiting
    first, second, young, old = (make_request(name, PREFIX[:50]) for name in ("1", "2", "young", "old"))
    old.aged = True
    assert [queue._holds(young, other) for other in (first, second, None)] == [True, True, False]
    assert [queue._holds(old, other) for other in (None, first, first, second, None)] == [
        False, True, True, False, False
    ]  # fmt: skip


def test_a_request_that_waits_for_its_prefix_holds_up_nobody() -> None:
    """Others begin while an aged request lets a running one finish its prefix, and then it finds that."""
    engine = FakeEngine(num_pages=4096, chunk_size=400)
    first = make_request("first", PREFIX[:450], max_tokens=2, ignore_eos=True)
    engine.add(first)
    engine.step()
    old, new = make_request("old", [*PREFIX[:450], 3, 4], max_tokens=2), make_request("new", prompt(1), max_tokens=2)
    old.aged = True
    engine.add(old, new)
    engine.step()
    assert old.status == "waiting"
    assert old.waits_for is first
    assert new.started_s is not None
    engine.run()
    assert old.cached_tokens == 450
    assert old.waits_for is None
    for request in (first, old, new):
        engine.check_answer(request)
