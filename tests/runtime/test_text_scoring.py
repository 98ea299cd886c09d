"""Texts scored by the scheduler, against every text scored alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fake_runner import TOKEN_BYTES, FakeModel, ids
from tests.fakes import FakeEngine, make_request, make_score

from palmette.runtime import text_scoring
from palmette.runtime.context import Prompt
from palmette.runtime.errors import RequestError
from palmette.runtime.intake import Intake
from palmette.runtime.messages import NewRequest, RequestEnd
from palmette.runtime.reports import report
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.score_request import ScoreRequest
from palmette.runtime.text_scoring import TextScoring
from palmette.runtime.usage_count import UsageCount

PROMPT = [3 + (i * 7) % 40 for i in range(40)]
TAILS = st.lists(st.lists(st.integers(3, 5), max_size=6), min_size=1, max_size=10)


def scoring_of(prompt: Sequence[int], tails: Sequence[Sequence[int]]) -> TextScoring:
    """Texts whose prompt belongs to node 0 and whose tails belong to node 1."""
    texts = [Prompt(ids(*prompt, *tail), ids(*[0] * len(prompt), *[1] * len(tail))) for tail in tails]
    return TextScoring(texts, len(prompt))


def brute_force(prompt: Sequence[int], tail: Sequence[int]) -> tuple[float, ...]:
    """The log-probability of each token of a tail after all that stands before it."""
    text = [*prompt, *tail]
    places = range(len(prompt), len(text))
    return tuple(float(FakeModel().logprobs(ids(*text[:place]))[text[place]]) for place in places)


def scored(engine: FakeEngine, scoring: TextScoring) -> tuple[list[tuple[float, ...]], list[RequestEnd]]:
    """What the engine makes of it, by the messages that a select sends and gets."""
    intake = Intake(TOKEN_BYTES, frozenset(), lambda: None, page_size=engine.memory.page_size)
    requests = []
    for index, (token_ids, tree) in enumerate(scoring.requests()):
        name, params = f"s{len(engine.texts)}.{index}", SamplingParams(seed=0)
        new = NewRequest(id=name, kind="score", prompt_ids=token_ids.tobytes(), params=params, tree=tree)
        request = intake.take(new)
        assert isinstance(request, ScoreRequest)
        requests.append(request)
    engine.add(*requests)
    engine.run()
    for request in requests:
        engine.check_answer(request)
    ends = [end for request in requests if (end := report(request, "", finished=True).end) is not None]
    return scoring.logprobs(ends), ends


def inner(tails: Sequence[Sequence[int]]) -> int:
    """How many tokens some choice goes on from."""
    return len({tuple(tail[:end]) for tail in tails for end in range(1, len(tail))})


@given(
    length=st.integers(1, 40),
    tails=TAILS,
    page_size=st.sampled_from([1, 4, 16]),
    chunk_size=st.sampled_from([1, 3, 17, 512]),
    overlap=st.booleans(),
    radix_cache=st.booleans(),
    cached=st.integers(0, 40),
)
@settings(max_examples=150)
def test_any_choices_are_scored_as_by_brute_force(
    length: int,
    tails: list[list[int]],
    page_size: int,
    chunk_size: int,
    overlap: bool,
    radix_cache: bool,
    cached: int,
) -> None:
    """In any pages and chunks, after any prompt, of which any part is cached; and nothing is computed needlessly."""
    engine = FakeEngine(
        num_pages=400 // page_size,
        page_size=page_size,
        chunk_size=chunk_size,
        overlap=overlap,
        radix_cache=radix_cache,
    )
    if cached:
        engine.add(make_request("before", PROMPT[:cached], max_tokens=1, ignore_eos=True))
        engine.run()
    before, steps = engine.runner.computed, engine.scheduler.stats().steps
    prompt = PROMPT[:length]
    scoring = scoring_of(prompt, tails)
    logprobs, ends = scored(engine, scoring)
    assert logprobs == [brute_force(prompt, tail) for tail in tails]
    assert [scoring.scored_ids(text) for text in range(len(tails))] == [tuple(tail) for tail in tails]
    usage = UsageCount()
    scoring.count(usage, ends)
    computed = engine.runner.computed - before
    if page_size == 1:
        reused = min(cached, length - 1) if radix_cache else 0
        assert computed == length - reused + inner(tails)
        assert computed == sum(node.computed for node in usage.nodes())
        assert reused == sum(node.reused for node in usage.nodes())
    if chunk_size == 512:
        assert engine.scheduler.stats().steps == steps + 1
    engine.check_empty()


def test_a_limb_of_a_page_computes_at_most_the_beginning_of_a_page_again() -> None:
    """Pages of 16 tokens: each choice that leaves the others repeats the tokens that its first page begins with."""
    engine = FakeEngine(num_pages=64, page_size=16)
    prompt, tails = PROMPT[:39], [[3, 4, 5], [4, 5, 6], [5, 6, 7], [6]]
    logprobs, _ = scored(engine, scoring_of(prompt, tails))
    assert logprobs == [brute_force(prompt, tail) for tail in tails]
    assert engine.runner.computed == 39 + inner(tails) + 2 * 7


def test_many_selects_after_one_prompt_share_it_and_a_step() -> None:
    """Many questions of four choices after one long beginning: one step computes that, and the next all the rest."""
    engine = FakeEngine(num_pages=6000, chunk_size=4096, max_running_requests=256, keep_plans=True)
    questions = [[*PROMPT * 8, 3 + i // 40, 3 + i % 40, *PROMPT[: 4 + i % 9]] for i in range(120)]
    tails = [[20, 21, 22], [20, 23], [24], [25, 26]]
    made = [
        make_score(f"q{i}", [[*question, *tail] for tail in tails], len(question))
        for i, question in enumerate(questions)
    ]
    engine.add(*made)
    engine.run()
    for request in made:
        engine.check_answer(request)
    texts = {tuple(question[:end]) for question in questions for end in range(1, len(question) + 1)}
    needed = len(texts) + len(questions) * inner(tails)
    assert engine.runner.computed <= 1.05 * needed
    assert len(engine.runner.plans) == 2
    assert len(engine.runner.plans[1].slots) == 2 * 119
    engine.check_empty()


def test_a_retracted_select_goes_on_where_it_was() -> None:
    """What is scored is not scored again; limbs that lead to the rest are computed anew."""
    engine = FakeEngine(num_pages=200, chunk_size=4)
    tails = [[first, second, 7, 8] for first in (3, 4, 5) for second in (3, 4)]
    request = make_score("s", [[*PROMPT[:10], *tail] for tail in tails], 10)
    engine.add(request)
    while len(request.score_logprobs) < 8:
        engine.step()
    known = list(request.score_logprobs)
    engine.scheduler._retract(request)
    engine.scheduler.check_invariants()
    assert request.longest_prefix <= request.path_end
    engine.run()
    assert request.score_logprobs[: len(known)] == known
    engine.check_answer(request)
    engine.check_empty()


def test_a_select_that_is_too_large_for_the_pool_ends_alone() -> None:
    """At the door where its tokens are too many; on admission where only whole pages make them so."""
    engine = FakeEngine(num_pages=4, page_size=16)
    with pytest.raises(RequestError, match="the prompt with its choices has 65 tokens, but the KV pool holds 64"):
        engine.add(make_score("l", [[*PROMPT, *PROMPT[:26]]], 40, page_size=16))
    request = make_score("s", [[3, first, 8] for first in range(3, 8)], 1, page_size=16)
    other = make_request("g", PROMPT[:4], max_tokens=3, ignore_eos=True)
    engine.add(request, other)
    engine.run()
    assert request.status == "failed"
    assert "10 tokens of KV cache, but the pool holds 64" in str(request.error)
    engine.check_answer(other)
    engine.check_empty()


def test_thousands_of_choices_are_scored_by_a_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours in alphabetical order go together, and every choice is scored once."""
    monkeypatch.setattr(text_scoring, "MOST_TOKENS", 40)
    tails = [[3 + i % 5, 3 + i // 5 % 5, 3 + i // 25] for i in range(60)]
    scoring = scoring_of(PROMPT, tails)
    assert len(scoring) == 5
    engine = FakeEngine(num_pages=400)
    logprobs, ends = scored(engine, scoring)
    assert logprobs == [brute_force(PROMPT, tail) for tail in tails]
    assert len(ends) == 5
    assert engine.runner.computed < len(PROMPT) + inner(tails) + 5 * 4
    engine.check_empty()


def test_limbs_of_one_token_come_before_decodes() -> None:
    """Attention has a kernel for rows of one token; a plan begins with all of them."""
    engine = FakeEngine(num_pages=400, keep_plans=True)
    engine.add(make_request("g", PROMPT[:9], max_tokens=4, ignore_eos=True))
    engine.step()
    tails = [[first, 7, 8] for first in (3, 4, 5)]
    tails += [[6, 7], [9, 9]]
    engine.add(make_score("s", [[*PROMPT[20:], *tail] for tail in tails], 20))
    engine.run()
    plan = next(plan for plan in engine.runner.plans if len(plan.score_tokens))
    assert np.diff(plan.query_indptr).tolist() == [1, 1, 1, 22, 2, 2]
    assert plan.sample_rows.tolist() == [2]
    assert len(set(plan.slots.tolist())) == 2
    for request in engine.finished:
        engine.check_answer(request)
