"""Deadlines of requests."""

from __future__ import annotations

import pytest
from tests.fake_grammar import ManualExecutor, ScriptedCompiler
from tests.fakes import FakeEngine, make_request
from tests.scheduler_examples import CODE, GRAMMARS, prompt

from palmette.runtime.errors import RequestTimeoutError
from palmette.runtime.request import Request
from palmette.runtime.timed_heap import Deadlines


def due_at(name: str, deadline_s: float | None) -> Request:
    request = make_request(name, [3])
    request.deadline_s = deadline_s
    return request


def test_the_earliest_come_first_and_once() -> None:
    """Those whose moment has come, in order, each once; the others stay."""
    deadlines = Deadlines()
    for name, deadline_s in (("b", 2.0), ("a", 1.0), ("never", None), ("c", 3.0)):
        deadlines.add(due_at(name, deadline_s))
    assert deadlines.next_s == 1.0
    assert deadlines.expired(0.5) == []
    assert [request.id for request in deadlines.expired(2.0)] == ["a", "b"]
    assert [request.id for request in deadlines.expired(9.0)] == ["c"]
    assert deadlines.next_s is None


def test_requests_that_ended_are_not_late() -> None:
    """A request that has ended in time is not told, and not kept until its deadline."""
    deadlines = Deadlines()
    for place in range(5000):
        request = due_at(str(place), 1e6 + place)
        deadlines.add(request)
        request.abort()
    assert len(deadlines._heap) < 200
    assert deadlines.expired(1e9) == []


def test_a_request_that_takes_too_long_fails() -> None:
    """By the engine's limit or its own: it fails with what it was doing, its pages come back, and others go on."""
    engine = FakeEngine(request_timeout_s=5.0, max_running_requests=1, policy="fcfs")
    running, waits = (make_request(name, prompt(i), max_tokens=50, ignore_eos=True) for i, name in enumerate("rw"))
    patient = make_request("p", prompt(3), max_tokens=3)
    patient.timeout_s = 100.0
    engine.add(running, waits, patient)
    engine.step()
    engine.clock.time_s = 4.9
    engine.step()
    assert running.is_active
    engine.clock.time_s = 5.1
    engine.step()
    for request, doing in ((running, "it was running, with [23] tokens of output"), (waits, "it had not begun to run")):
        assert isinstance(request.error, RequestTimeoutError)
        with pytest.raises(RequestTimeoutError, match=f"had not ended 5.1 s after it came: {doing}"):
            raise request.error
    engine.run()
    engine.check_answer(patient)
    engine.check_empty()


def test_a_request_may_time_out_while_its_grammar_compiles() -> None:
    """Its job is given up, and its end is told once."""
    executor = ManualExecutor()
    engine = FakeEngine(
        grammars=GRAMMARS, compiler=ScriptedCompiler(*GRAMMARS), executor=executor, request_timeout_s=1.0
    )
    request = make_request("c", prompt(1), grammar=CODE.grammar)
    engine.add(request)
    engine.clock.time_s = 2.0
    engine.step()
    assert isinstance(request.error, RequestTimeoutError)
    executor.run_next()
    engine.run()
    assert engine.finished == [request]
    engine.check_empty()
