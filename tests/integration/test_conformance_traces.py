"""A run can be looked at on every backend: each test runs on all there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.five_backends import ENGINES
from tests.lang.trace_event_rules import checked_events

import palmette as pt


@pt.function(max_tokens=6)
def mark(s: pt.ProgramState) -> None:
    s += pt.user("Mark it.") + pt.assistant(pt.gen("draft", regex="[ab]{4}"))
    branches = s.fork(2)
    branches += lambda place: pt.user(f"Case {place}") + pt.assistant(pt.gen("grade", regex="[ab]{4}"))
    branches.join()
    s += pt.user(pt.template("{a}?", a=s.ref("draft"))) + pt.assistant(pt.select("verdict", ["yes", "no"]))


def test_every_answer_says_when_it_was_made(backend: pt.Backend, tmp_path: Path) -> None:
    """Calls follow what they wait for, forks are arrows, and engines tell of steps and batches."""
    state = mark.run(backend=backend)
    assert state.error() is None
    trace = state.trace()
    times = {node.view.id: timings for node, timings in trace.timed()}
    calls = [node for node in trace.nodes if node.view.kind in ("gen", "select")]
    assert set(times) == {node.view.id for node in calls}
    draft, *grades, verdict = (times[node.view.id] for node in calls)
    for timings in (draft, *grades, verdict):
        assert 0 <= timings.start_s <= timings.start_s + timings.queue_s <= timings.end_s + 1e-9
        assert (timings.first_step is not None) == isinstance(backend, ENGINES)
    assert all(draft.end_s <= grade.start_s for grade in grades)
    assert draft.end_s <= verdict.start_s
    events = checked_events(trace.events_json())
    arrows = [event["name"] for event in events if event["ph"] == "s"]
    assert sorted(arrows) == ["fork", "fork"]  # nothing after the join waits for the branches
    assert trace.save(tmp_path / "run.html").exists()


def test_log_probabilities_lie_on_the_answer(backend: pt.Backend) -> None:
    """Where a backend gives them, the tokens of an answer join to its text."""
    from palmette.lang.answer_tokens import answer_tokens

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "Once" + pt.gen("x", 5)

    state = program.run(backend=backend, logprobs=1, return_text_in_logprobs=True)
    (answer,) = (answer for node in state.trace().nodes for answer in node.answers)
    if not answer.logprobs:
        pytest.skip("this backend gives none")
    tokens = answer_tokens(answer)
    assert "".join(token.text for token in tokens) == answer.text
    assert all(token.logprob <= 0 for token in tokens)
