"""A run as it went: its timings, its tokens, and the file for trace viewers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lang.trace_event_rules import Event, checked_events

import palmette as pt
from palmette.lang.session_clock import SessionClock
from palmette.lang.source_line import SourceLine
from palmette.lang.trace import trace_of
from palmette.lang.trace_flows import flows_of
from palmette.lang.tree import NodeRecord, ProgramTree
from palmette.runtime.program import (
    Completion,
    Delta,
    Failed,
    Fork,
    Generate,
    Generated,
    Join,
    Node,
    Reference,
    Select,
    Selected,
    Text,
    Timings,
)
from palmette.runtime.sampling_params import SamplingParams

LINE = SourceLine("folder/program.py", 3, "program")
PARAMS = SamplingParams()


def answer(text: str, begin: float, end: float, **timings: object) -> Completion:
    return Completion(
        text=text,
        token_ids=(1,),
        finish_reason="stop",
        prompt_tokens=9,
        cached_tokens=4,
        completion_tokens=1,
        timings=Timings(start_s=begin, end_s=end, **timings),  # type: ignore[arg-type]
    )


def run_of(*steps: tuple[Node, int, Generated | Selected | Failed | None]) -> ProgramTree:
    """A tree of nodes on their branches, with what came of them."""
    tree = ProgramTree()
    for node, branch, event in steps:
        tree.add(NodeRecord(node, branch, LINE, f"v{node.id}"))
        if isinstance(node, Fork):
            tree.open_branches(node)
        if event is not None:
            tree.apply(event)
    return tree


def forked() -> ProgramTree:
    """A call, two branches, their join, a reference, and a gen of two answers that overlap in time."""
    return run_of(
        (Text(0, None, "Go."), 0, None),
        (Generate(1, 0, PARAMS), 0, Generated(1, (answer("one", 0.0, 0.1, queue_s=0.01, first_token_s=0.05),))),
        (Fork(2, 1, 2), 0, None),
        (Generate(3, 2, PARAMS), 1, Generated(3, (answer("left", 0.1, 0.2, first_step=4, last_step=6, batch_size=2),))),
        (
            Select(4, 2, ("a", "b")),
            2,
            Selected(4, 1, timings=Timings(start_s=0.1, end_s=0.3, first_step=6, last_step=9)),
        ),
        (Join(5, 2, (3, 4)), 0, None),
        (Reference(6, 5, 1), 0, None),
        (Generate(7, 6, PARAMS, n=2), 0, Generated(7, (answer("x", 0.3, 0.5), answer("y", 0.3, 0.4)))),
    )


def slices(events: list[Event]) -> dict[str, Event]:
    return {event["name"]: event for event in events if event["ph"] == "X" and "node" in event["args"]}


def test_calls_are_slices_on_their_branches() -> None:
    """A branch is a track; a call has its tokens and times, and inside it stand its queue, prefill and decode."""
    events = checked_events(trace_of("p", forked(), "model").events_json())
    calls = slices(events)
    assert set(calls) == {"gen v1", "gen v3", "select v4", "gen v7", "gen v7 [1]"}
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = {name: names[call["tid"]] for name, call in calls.items()}
    assert (tracks["gen v1"], tracks["gen v3"], tracks["select v4"]) == ("branch 0", "branch 1", "branch 2")
    assert (tracks["gen v7"], tracks["gen v7 [1]"]) == ("branch 0", "branch 0 (2)")
    first = calls["gen v1"]
    assert (first["ts"], first["dur"]) == (0, 100_000)
    assert first["args"] | {
        "text": "one", "prompt_tokens": 9, "reused_tokens": 4, "output_tokens": 1, "forced_tokens": 0, "queue_ms": 10,
        "first_token_ms": 50, "line": "folder/program.py:3", "node": 1,
    } == first["args"]  # fmt: skip
    inside = [
        (each["name"], each["ts"], each["dur"])
        for each in events
        if each["ph"] == "X" and each["tid"] == first["tid"] and each["ts"] < 100_000 and each is not first
    ]
    assert inside == [("queue", 0, 10_000), ("prefill", 10_000, 40_000), ("decode", 50_000, 50_000)]


def test_steps_tell_of_batch_mates() -> None:
    """Calls that ran in the same step of the engine count each other; the size of their batches is there."""
    calls = slices(checked_events(trace_of("p", forked(), "model").events_json()))
    left, right = calls["gen v3"]["args"], calls["select v4"]["args"]
    assert (left["first_step"], left["last_step"], left["mean_batch_size"]) == (4, 6, 2)
    assert (left["mates_of_this_program"], right["mates_of_this_program"]) == (1, 1)
    assert "mates_of_this_program" not in calls["gen v1"]["args"]


def test_arrows_lead_where_the_program_waited() -> None:
    """From the call before a fork to its branches, from branches to what follows their join, and to a repetition."""
    trace = trace_of("p", forked(), "model")
    assert set(flows_of(trace)) == {
        ("fork", 1, 3), ("fork", 1, 4), ("join", 3, 7), ("join", 4, 7),
    }  # fmt: skip
    arrows = [event for event in checked_events(trace.events_json()) if event["ph"] == "s"]
    assert sorted(event["name"] for event in arrows) == ["fork", "fork", "join", "join"]


def test_a_join_that_was_not_waited_for_is_no_arrow() -> None:
    """What follows a join may begin, and end, before the branches have."""
    tree = run_of(
        (Fork(0, None, 1), 0, None),
        (Generate(1, 0, PARAMS), 1, Generated(1, (answer("slow", 5, 9),))),
        (Join(2, 0, (1,)), 0, None),
        (Generate(3, 2, PARAMS), 0, Generated(3, (answer("fast", 0, 1),))),
    )
    trace = trace_of("p", tree, "")
    assert list(flows_of(trace)) == []
    checked_events(trace.events_json())


def test_a_reference_to_another_branch_is_an_arrow() -> None:
    """What a branch says of another's answer waits for that one."""
    tree = run_of(
        (Fork(0, None, 2), 0, None),
        (Generate(1, 0, PARAMS), 1, Generated(1, (answer("a", 0, 1),))),
        (Text(2, 0, "He says: "), 2, None),
        (Reference(3, 2, 1), 2, None),
        (Generate(4, 3, PARAMS), 2, Generated(4, (answer("b", 1, 2),))),
    )
    assert list(flows_of(trace_of("p", tree, ""))) == [("reference", 1, 4)]


def test_equal_times_and_answers_of_no_time_are_drawn() -> None:
    """Calls that begin and end in the same microsecond still make slices that nest."""
    tree = run_of(
        (Fork(0, None, 1), 0, None),
        *((Generate(i, 0, PARAMS), 1, Generated(i, (answer("a", 0.5, 0.5),))) for i in range(1, 5)),
    )
    checked_events(trace_of("p", tree, "").events_json())


def test_a_run_on_a_mock_is_timed() -> None:
    """A backend without steps says when answers began, came and ended, by its clock; streams say more."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "One " + pt.gen("x") + pt.gen("y")

    state = program.stream(backend=pt.MockBackend(["two three", "four five six"], latency_s=0.01, piece_length=5))
    assert state["y"] == "four five six"
    x, y = (state.get_meta_info(name)["timings"] for name in "xy")
    assert 0 <= x.start_s < x.start_s + x.first_token_s < x.end_s <= y.start_s < y.end_s
    assert x.decode_s > 0
    assert (x.first_step, x.batch_size) == (None, None)
    trace = state.trace()
    assert [node.view.kind for node in trace.nodes] == ["text", "gen", "gen"]
    assert set(slices(checked_events(trace.events_json()))) == {"gen x", "gen y"}


def test_a_clock_of_a_session() -> None:
    """Events get times since the session began; those of failures and deltas stay as they are."""
    now = iter([10.0, 11.0, 12.5, 14.0, 15.0, 16.0])
    clock = SessionClock(lambda: next(now))
    clock.begin(1)
    delta = Delta(1, "a")
    assert clock.timed(delta) is delta
    done = clock.timed(Generated(1, (answer("a", 0, 0),)))
    assert isinstance(done, Generated)
    assert done.completions[0].timings == Timings(start_s=1.0, end_s=4.0, first_token_s=1.5)
    assert done.elapsed_s == 3.0
    clock.begin(2)
    failed = Failed(2, "RequestError", "no")
    assert clock.timed(failed) is failed


def test_unfinished_and_failed_runs_have_traces() -> None:
    """A trace is of what is there: texts, running calls and failures have no times."""
    tree = run_of(
        (Text(0, None, "a"), 0, None),
        (Generate(1, 0, PARAMS), 0, Failed(1, "RequestError", "no")),
        (Generate(2, 1, PARAMS), 0, None),
    )
    trace = trace_of("p", tree, "")
    assert [event["ph"] for event in checked_events(trace.events_json())] == ["M", "M"]
    assert "no" in trace.html()
    assert "0 nodes" in trace_of("p", ProgramTree(), "").html()


def test_save_writes_what_the_name_says(tmp_path: Path) -> None:
    """.json is the trace viewers' form and .html the page; another name is refused before anything is written."""
    trace = trace_of("p", forked(), "model")
    assert trace.save(tmp_path / "a.json").read_text() == trace.events_json()
    assert trace.save(str(tmp_path / "a.html")).read_text(encoding="utf-8") == trace.html()
    with pytest.raises(ValueError, match=r"\.json .* or \.html .*, not as 'a.txt'"):
        trace.save(tmp_path / "a.txt")
    assert not (tmp_path / "a.txt").exists()
