"""When requests ran, with how many others, and which of their text was forced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import FakeEngine, make_request
from tests.scheduler_examples import CALL, prompt
from tests.wire import run_tree

from palmette.constrained.grammar import Grammar
from palmette.lang.backend import Backend
from palmette.runtime.answer_timings import Beginning, forced_characters, timings_of, timings_of_all
from palmette.runtime.messages import RequestEnd
from palmette.runtime.program import Fork, Generate, Generated, Node, Select, Selected, Text, Timings
from palmette.runtime.reports import report
from palmette.runtime.sampling_params import SamplingParams


@pytest.mark.usefixtures("both_loops")
def test_steps_and_batch_sizes_are_those_of_the_plans() -> None:
    """A request ran from the step that first computed it to the one that gave its last token; rows are counted."""
    engine = FakeEngine(keep_plans=True, max_running_requests=3, chunk_size=7)
    requests = [make_request(f"r{i}", prompt(i) * (1 + i % 3), max_tokens=3 + i, ignore_eos=True) for i in range(8)]
    engine.add(*requests)
    engine.run()
    rows = {plan.step: len(plan.slots) for plan in engine.runner.plans}
    for request in requests:
        steps = range(request.first_step, request.last_step + 1)
        assert len(steps) >= request.num_output
        assert request.mean_batch_size == pytest.approx(sum(rows[step] for step in steps) / len(steps))
    assert min(request.first_step for request in requests) == 1
    assert 1 < max(request.mean_batch_size for request in requests) <= 3


@pytest.mark.usefixtures("both_loops")
def test_a_request_that_never_ran_has_no_steps() -> None:
    """One that is aborted while it waits says so by the lack of them."""
    engine = FakeEngine(max_running_requests=1)
    first, second = make_request("a", prompt(1), max_tokens=9), make_request("b", prompt(2))
    engine.add(first, second)
    engine.step()
    engine.scheduler.abort("b")
    engine.run()
    end = report(second, "", finished=True).end
    assert end is not None
    assert (end.first_step, end.last_step, end.batch_size, end.queue_s, end.first_token_s) == (0, 0, 0, None, None)
    assert timings_of(end, Beginning(1.0, 1.5)).first_step is None


@pytest.mark.usefixtures("both_loops")
def test_forced_tokens_are_told_by_place() -> None:
    """The ranges hold the tokens that the grammar left no choice about, and not the digit between them."""
    engine = FakeEngine(grammars=[CALL])
    request = make_request("r", prompt(3), grammar=CALL.grammar, max_tokens=30)
    engine.add(request)
    engine.run()
    assert request.forced_ranges == [(0, 2), (3, 5)]
    assert request.forced == 4


def test_times_of_a_request_are_put_on_the_programs_clock() -> None:
    """What passed before the request was sent counts as waiting; the scheduler's durations stand behind it."""
    end = RequestEnd(queue_s=0.5, first_token_s=2.0, elapsed_s=4.0, first_step=3, last_step=8, batch_size=1.5)
    assert timings_of(end, Beginning(10.0, 10.25)) == Timings(
        start_s=10.0, end_s=14.25, queue_s=0.75, first_token_s=2.25, first_step=3, last_step=8, batch_size=1.5
    )
    assert timings_of(end, Beginning(10.0, 10.25)).decode_s == 2.0


def test_times_of_a_select_are_of_all_its_requests() -> None:
    """From the first that ran to the last that ended; steps are weighed by their number."""
    ends = [
        RequestEnd(queue_s=0.5, elapsed_s=1.0, first_step=3, last_step=3, batch_size=4.0),
        RequestEnd(queue_s=0.2, elapsed_s=3.0, first_step=2, last_step=4, batch_size=2.0),
        RequestEnd(elapsed_s=0.1),
    ]
    timings = timings_of_all(ends, Beginning(1.0, 1.0))
    assert timings == Timings(start_s=1.0, end_s=4.0, queue_s=0.1, first_step=2, last_step=4, batch_size=2.5)


@given(st.text(min_size=1, max_size=10), st.data())
def test_forced_characters_are_those_of_the_tokens(text: str, data: st.DataObject) -> None:
    """However bytes fall into tokens, forced characters are within the text, in order, and never half a character."""
    encoded = text.encode(errors="replace")
    text = encoded.decode()
    size = data.draw(st.integers(1, 4))
    tokens = [encoded[at : at + size] for at in range(0, len(encoded), size)]
    begin = data.draw(st.integers(0, len(tokens) - 1))
    stop = data.draw(st.integers(begin + 1, len(tokens) + 1))
    end = RequestEnd(text=text, kept_ids=tuple(range(len(tokens))), forced_ranges=((begin, stop),))
    ranges = forced_characters(end, tokens)
    before = b"".join(tokens[:begin]).decode(errors="ignore")
    upto = b"".join(tokens[:stop]).decode(errors="ignore")
    assert ranges == (((len(before), len(upto)),) if len(before) < len(upto) else ())


@pytest.mark.parametrize("seed", range(4))
def test_log_probabilities_change_no_answer(tiny_engine: Backend, seed: int) -> None:
    """Sampled and constrained answers side by side are the same with and without, and so is what was forced of them."""
    answers = []
    for asked in ({}, {"logprobs": 2, "return_text_in_logprobs": True}):
        params = SamplingParams(temperature=1.2, max_tokens=24, seed=seed, **asked)  # type: ignore[arg-type]
        nodes: list[Node] = [
            Text(0, None, f"Number {seed}:"),
            Generate(1, 0, params, Grammar.regex("It is (yes|no), really[a-z]{9}")),
            Generate(2, 0, params, n=2),
        ]
        done = run_tree(tiny_engine, nodes).done
        answers.append(
            [each.text for event in done.values() if isinstance(event, Generated) for each in event.completions]
        )
    assert sorted(answers[0]) == sorted(answers[1])


def test_an_engine_says_when_its_answers_were_made(tiny_engine: Backend) -> None:
    """Answers of two branches share steps; what follows their parent begins after it; forced text is told by place."""
    params = SamplingParams(temperature=0, max_tokens=24)
    grammar = Grammar.regex("It is (yes|no), really")
    nodes: list[Node] = [
        Text(0, None, "One fine day."),
        Generate(1, 0, params, grammar),
        Fork(2, 1, 2),
        Generate(3, 2, SamplingParams(max_tokens=9, ignore_eos=True), n=2),
        Select(4, 2, (" yes", " no")),
    ]
    done = run_tree(tiny_engine, nodes).done
    first, pair, chosen = done[1], done[3], done[4]
    assert isinstance(first, Generated)
    assert isinstance(pair, Generated)
    assert isinstance(chosen, Selected)
    answer = first.completions[0]
    assert next(answer.text[begin:stop] for begin, stop in answer.forced_ranges).startswith("It is")
    assert sum(stop - begin for begin, stop in answer.forced_ranges) < len(answer.text)
    before = answer.timings
    assert before is not None
    for timings in (*(each.timings for each in pair.completions), chosen.timings):
        assert timings is not None
        assert before.end_s <= timings.start_s <= timings.end_s
        assert 0 <= timings.queue_s <= timings.elapsed_s
        assert timings.first_step is not None
        assert before.last_step is not None
        assert timings.first_step >= before.last_step
    left, right = (each.timings for each in pair.completions)
    assert left is not None
    assert right is not None
    assert left.first_step == right.first_step
    assert left.batch_size is not None
    assert left.batch_size > 1
    assert left.first_token_s is not None
    assert left.queue_s < left.first_token_s < left.elapsed_s
