"""What the request tree says of a real run: prefixes are computed once, and pages come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lang.trace_event_rules import checked_events
from tests.wire import run_tree

import palmette as pt
from palmette.lang.answer_tokens import answer_tokens
from palmette.runtime.engine import Engine
from palmette.runtime.program import Fork, Generate, Generated, Node, Text
from palmette.runtime.sampling_params import SamplingParams

pytestmark = pytest.mark.default_model

GREEDY = SamplingParams(temperature=0, max_tokens=4)


def test_fork_16_computes_a_600_token_prefix_once(default_engine: Engine) -> None:
    """Of sixteen branches on a prefix of 600 tokens, one computes it and fifteen reuse it, by the tree's own counts."""
    default_engine.flush_cache()
    prefix = " ".join(f"Rule {number}: never divide by {number}." for number in range(60))
    prefix = prefix[: 600 * len(prefix) // len(default_engine.tokenizer.encode_text(prefix))]
    tokens = len(default_engine.tokenizer.encode_text(prefix))
    nodes: list[Node] = [Text(0, None, prefix), Fork(1, 0, 16)]
    for branch in range(16):
        nodes += [Text(2 + 2 * branch, 1, f"\nCase {branch}:"), Generate(3 + 2 * branch, 2 + 2 * branch, GREEDY)]
    done = run_tree(default_engine, nodes).done
    usage = [u for event in done.values() if isinstance(event, Generated) for u in event.usage if u.node == 0]
    assert 590 <= tokens <= 610
    assert sum(u.computed for u in usage) == tokens
    assert sum(u.reused for u in usage) == 15 * tokens


def test_pages_come_back_when_programs_end_or_are_dropped(default_engine: Engine) -> None:
    """After programs that finish and one that is dropped half-way, every page is free or in the cache."""
    run_tree(default_engine, [Text(0, None, "One, two,"), Generate(1, 0, GREEDY, n=3)])
    session = default_engine.open(lambda event: None)
    session.extend([Text(0, None, "A long story:"), Generate(1, 0, SamplingParams(max_tokens=4000, ignore_eos=True))])
    session.close()
    run_tree(default_engine, [Text(0, None, "Next"), Generate(1, 0, GREEDY)])  # what was dropped ends within a step
    default_engine.flush_cache()
    stats = default_engine.stats()
    assert stats.running == 0
    assert stats.free_pages == stats.total_pages


def test_the_tree_prints_texts_and_counts(default_engine: Engine) -> None:
    """`state.tree` shows every node with its text and its tokens."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("Say a colour.")
        s += pt.assistant(pt.gen("colour", regex="red|green|blue", temperature=0))

    state = program.run(backend=default_engine)
    printed = str(state.tree)
    assert state["colour"] in ("red", "green", "blue")
    assert state["colour"] in printed
    assert "Say a colour." in printed


def test_a_trace_of_a_real_run(default_engine: Engine, tmp_path: Path) -> None:
    """Asking for log-probabilities changes no answer; tokens join to the answers, forced ones too; calls nest."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("Grade this essay: Bicycles are quiet and cheap.")
        marks = s.fork(2)
        marks += lambda place: pt.assistant(pt.gen("mark", regex=r"The mark is [1-5]\.", temperature=0))
        marks.join()
        s += pt.user("Emojis, please: 🙂🙃") + pt.assistant(pt.gen("rest", max_tokens=8, temperature=0))
        s += pt.user("Pass?") + pt.assistant(pt.select("verdict", ["pass", "fail"]))

    plain = program.run(backend=default_engine)
    state = program.run(backend=default_engine, logprobs=2, return_text_in_logprobs=True)
    assert state.text() == plain.text()
    trace = state.trace()
    calls = {event["name"] for event in checked_events(trace.events_json()) if "node" in event.get("args", {})}
    assert calls == {"gen mark", "gen rest", "select verdict"}
    answers = [answer for node in trace.nodes for answer in node.answers]
    assert len(answers) == 3
    for answer in answers:
        assert "".join(token.text for token in answer_tokens(answer)) == answer.text
    assert {token.text for answer in answers for token in answer_tokens(answer) if token.forced} >= {
        "The",
        " mark",
        " is",
    }
    forced = [answer.text[begin:end] for answer in answers for begin, end in answer.forced_ranges]
    assert "The mark is" in forced[0]
    assert all(node.view.segments[0].kind == "reused" for node in trace.nodes[:1])  # from the run before
    assert all(timings.first_step is not None for _, timings in trace.timed())
    assert trace.save(tmp_path / "run.html").stat().st_size > 10_000
