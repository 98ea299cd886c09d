"""The budget of a step, and the estimate of outputs."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import FakeEngine, make_request

from palmette.runtime.admission import EXPECTED_OUTPUT_LIMIT, AdmissionBudget, OutputEstimate
from palmette.runtime.kv_memory import KVMemory
from palmette.runtime.request import Request


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


def finished(output: int, max_tokens: int) -> Request:
    """A request that ended by itself after `output` tokens."""
    request = make_request("r", [3], max_tokens=max_tokens)
    for _ in range(output):
        request.append(5)
    request.move_to("running")
    request.finish("stop")
    return request


@given(st.lists(st.one_of(st.none(), st.integers(1, 100)), max_size=200))
def test_the_estimate_stays_a_fraction(events: list[int | None]) -> None:
    """Whatever finishes and is retracted, the expected share of max_tokens stays within its bounds."""
    estimate = OutputEstimate()
    for output in events:
        before = estimate.ratio
        if output is None:
            estimate.retracted()
            assert estimate.ratio > before or estimate.ratio == 1
        else:
            estimate.finished(finished(output, 100))
            assert (estimate.ratio > before) == (output / 100 > before) or estimate.ratio in (1, estimate.LOWEST)
        assert estimate.LOWEST <= estimate.ratio <= 1


@given(most=st.integers(2, 95), seed=st.integers(0, 1000))
def test_the_estimate_follows_what_requests_use(most: int, seed: int) -> None:
    """After a hundred requests that use up to a part of max_tokens, the estimate is near their upper quartile."""
    source, estimate = random.Random(seed), OutputEstimate()
    for _ in range(100):
        estimate.finished(finished(source.randint(1, most), 100))
    assert 0.5 * most / 100 - 0.15 <= estimate.ratio <= most / 100 + 0.1


def test_large_limits_are_no_reason_to_keep_others_out() -> None:
    """A few short answers to requests that may take 4096 tokens, and ten times as many are admitted."""
    estimate = OutputEstimate()
    before = estimate.final_length(make_request("r", [3], max_tokens=10 * EXPECTED_OUTPUT_LIMIT))
    for _ in range(60):
        estimate.finished(finished(40, 10 * EXPECTED_OUTPUT_LIMIT))
    after = estimate.final_length(make_request("r", [3], max_tokens=10 * EXPECTED_OUTPUT_LIMIT))
    assert before > 2000
    assert after < 200


def test_only_requests_that_end_by_themselves_teach() -> None:
    """An aborted request or a score says nothing about the length of answers."""
    estimate = OutputEstimate()
    aborted = make_request("a", [3], max_tokens=100)
    aborted.abort()
    score = make_request("s", [3, 4], kind="score", score_from=1)
    score.move_to("running")
    score.finish(None)
    estimate.finished(aborted)
    estimate.finished(score)
    assert estimate.ratio == OutputEstimate.START


def test_the_scheduler_learns_from_its_requests() -> None:
    """Requests that use all they are allowed raise the estimate, and those that use little lower it."""
    engine = FakeEngine()
    engine.add(make_request("long", [3, 4], max_tokens=9, ignore_eos=True))
    engine.run()
    assert engine.scheduler._estimate.ratio > OutputEstimate.START
    engine.add(make_request("short", [3, 5], max_tokens=100, stop_token_ids=tuple(range(64))))
    engine.run()
    assert engine.scheduler._estimate.ratio < 1 - 0.05


def test_a_score_request_is_expected_to_end_with_its_prompt() -> None:
    """Scoring has no output to plan for."""
    request = make_request("a", [3] * 9, kind="score", score_from=2, max_tokens=100)
    assert OutputEstimate().final_length(request) == 8
