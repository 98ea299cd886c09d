"""The waiting queue of the scheduler: its limit, priorities, name spaces, and who begins in a step."""

from __future__ import annotations

import pytest
from tests.fake_grammar import ManualExecutor, ScriptedCompiler
from tests.fakes import FakeEngine, make_request
from tests.scheduler_examples import CODE, GRAMMARS, PREFIX, prompt

from palmette.runtime.errors import QueueFullError
from palmette.runtime.queue_limit import MOST_RETRY_S, QueueLimit
from palmette.runtime.request import Request


def order_of_ends(engine: FakeEngine) -> list[str]:
    engine.run()
    return [request.id for request in engine.finished]


def with_priority(name: str, priority: int, *, seed: int = 0) -> Request:
    request = make_request(name, prompt(seed or len(name)), max_tokens=2, ignore_eos=True)
    request.priority = priority
    return request


# -- limits ---------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_says_when_to_try_again() -> None:
    """More than max_queued_requests are refused, nothing of them is kept, and room makes room again."""
    engine = FakeEngine(max_queued_requests=2, max_running_requests=1)
    engine.add(make_request("run", prompt(1), max_tokens=9, ignore_eos=True))
    engine.step()
    engine.add(make_request("a", prompt(2), max_tokens=2), make_request("b", prompt(3), max_tokens=2))
    refused = make_request("c", prompt(4), max_tokens=2)
    with pytest.raises(QueueFullError, match="2 requests wait, and at most 2 may; try again in 1 s") as caught:
        engine.scheduler.add(refused)
    assert caught.value.retry_after_s == 1
    engine.run()
    engine.add(refused)
    engine.run()
    engine.check_answer(refused)
    engine.check_empty()


def test_requests_that_wait_for_grammars_count() -> None:
    """A queue of grammars to compile is no way around the limit."""
    executor = ManualExecutor()
    engine = FakeEngine(
        grammars=GRAMMARS, compiler=ScriptedCompiler(*GRAMMARS), executor=executor, max_queued_requests=2
    )
    engine.add(*[make_request(str(i), prompt(i), grammar=CODE.grammar) for i in range(2)])
    with pytest.raises(QueueFullError):
        engine.scheduler.add(make_request("c", prompt(4)))
    executor.run_next()
    engine.run()
    engine.check_empty()


@pytest.mark.parametrize(
    ("waits", "expected"), [([], 1.0), ([0.01] * 5, 1.0), ([4.0, 5.0, 30.0], 5.0), ([500.0], MOST_RETRY_S)]
)
def test_the_time_to_try_again_is_what_the_queue_took_lately(waits: list[float], expected: float) -> None:
    """The median wait of those that began lately, within bounds."""
    limit = QueueLimit(1)
    for wait in waits:
        limit.begun(wait)
    assert limit.retry_after_s == expected


def test_the_limit_learns_from_the_scheduler() -> None:
    """Waits are counted from arrival to the first admission."""
    engine = FakeEngine(max_running_requests=1, max_queued_requests=3)
    engine.add(*[make_request(str(i), prompt(i), max_tokens=2, ignore_eos=True) for i in range(3)])
    while engine.scheduler.can_step:
        engine.step()
        engine.clock.time_s += 10
    engine.add(*[make_request(f"n{i}", prompt(i), max_tokens=2) for i in range(3)])
    with pytest.raises(QueueFullError) as caught:
        engine.scheduler.add(make_request("c", prompt(4)))
    assert caught.value.retry_after_s is not None
    assert 10 <= caught.value.retry_after_s <= 40


# -- priorities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight", "random"])
def test_a_higher_priority_goes_first(policy: str) -> None:
    """With one slot, requests that came together begin by priority; equals as the policy says."""
    engine = FakeEngine(max_running_requests=1, policy=policy)
    engine.add(*[with_priority(f"p{level}", level, seed=level + 5) for level in (0, -1, 2, 1)])
    assert order_of_ends(engine) == ["p2", "p1", "p0", "p-1"]


def test_priority_goes_before_a_cached_prefix() -> None:
    """A policy only orders requests of one priority."""
    engine = FakeEngine(max_running_requests=1)
    engine.add(make_request("warm", PREFIX[:50], max_tokens=1))
    engine.run()
    hit = make_request("hit", [*PREFIX[:50], 3], max_tokens=2)
    engine.add(hit, with_priority("urgent", 1))
    assert order_of_ends(engine) == ["warm", "urgent", "hit"]


def test_an_old_request_goes_before_a_little_more_priority() -> None:
    """A level is worth a minute: who came more than a minute before and was passed for two seconds goes first."""
    engine = FakeEngine(max_running_requests=1)
    blocker = make_request("blocker", prompt(1), max_tokens=3, ignore_eos=True)
    engine.add(blocker)
    engine.step()
    engine.add(with_priority("old", 0, seed=7))
    engine.clock.time_s = 70.0
    engine.add(with_priority("first", 1, seed=8))
    while blocker.is_active:
        engine.step()
    engine.step()
    engine.clock.time_s = 73.0
    engine.add(with_priority("later", 1, seed=9))
    assert order_of_ends(engine) == ["blocker", "first", "old", "later"]


# -- name spaces ----------------------------------------------------------------------------------------------------


def test_prefixes_are_shared_within_a_name_space_only() -> None:
    """The same prompt again is a hit in its own name space, and computed anew in another."""
    engine = FakeEngine()
    made = []
    for name, namespace in (("a", "x"), ("b", "x"), ("c", "y"), ("d", ""), ("e", "")):
        request = make_request(name, prompt(3, 30), max_tokens=2)
        request.namespace = namespace
        engine.add(request)
        engine.run()
        engine.check_answer(request)
        made.append(request)
    assert [request.cached_tokens for request in made] == [0, 29, 0, 0, 29]
    engine.check_empty()


def test_nobody_waits_for_a_prefix_of_another_name_space() -> None:
    """Requests with the same prompt in different name spaces begin side by side, those of one after the other."""
    engine = FakeEngine(num_pages=1024)
    made = []
    for place in range(6):
        request = make_request(str(place), [*PREFIX[:100], 3 + place], max_tokens=9, ignore_eos=True)
        request.namespace = "xyz"[place % 3]
        made.append(request)
    engine.add(*made)
    engine.step()
    assert engine.scheduler.stats().running == 3
    engine.step()
    assert engine.scheduler.stats().running == 6
    engine.run()
    assert [request.cached_tokens for request in made] == [0] * 3 + [100] * 3
    engine.check_empty()


# -- order ----------------------------------------------------------------------------------------------------------


def test_the_subtree_that_most_wait_for_goes_first() -> None:
    """dfs-weight on the scheduler: three questions on one cached document go before an older one on another."""
    engine = FakeEngine(num_pages=1024, max_running_requests=1, policy="dfs-weight")
    documents = [prompt(seed, 50) for seed in (1, 2)]
    for place, document in enumerate(documents):
        engine.add(make_request(f"d{place}", document, max_tokens=1))
        engine.run()
    engine.add(make_request("old", [*documents[0], 9], max_tokens=1))
    engine.add(*[make_request(f"q{place}", [*documents[1], 3 + place], max_tokens=1) for place in range(3)])
    assert order_of_ends(engine)[2:] == ["q0", "q1", "q2", "old"]


def test_a_long_queue_is_worked_off() -> None:
    """Ten times as many requests as a policy looks at in one step: all of them get their answers."""
    engine = FakeEngine(num_pages=600, max_running_requests=40, context_length=64)
    made = [make_request(str(i), prompt(i % 50, 9 + i % 3), max_tokens=2) for i in range(1300)]
    for request in made:
        engine.scheduler.add(request)
        engine.texts[request.id] = ""
    for _ in range(3000):
        if not engine.scheduler.can_step:
            break
        for update in engine.scheduler.step():
            engine.texts[update.request.id] += update.text
        engine.clock.time_s += 0.1
    for request in made:
        engine.check_answer(request)
    engine.check_empty()
