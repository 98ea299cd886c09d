"""The scheduler on a fake model: prefixes that are reused, and memory that runs short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.fake_grammar import (
    scripted_chain,
)
from tests.fake_runner import token
from tests.fakes import FakeEngine, make_request
from tests.scheduler_examples import DIGITS, GRAMMARS, PREFIX, WORD, prompt

from palmette.runtime.errors import RequestError
from palmette.runtime.request import Request

pytestmark = pytest.mark.usefixtures("both_loops")

# -- reuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_fork_computes_its_prefix_once(page_size: int) -> None:
    """Sixteen branches on 600 shared tokens compute them once; the other fifteen take them from the tree."""
    engine = FakeEngine(overlap=False, num_pages=2048 // page_size, page_size=page_size)
    branches = [make_request(str(i), [*PREFIX, 3 + i, 4], max_tokens=8, group="fork") for i in range(16)]
    engine.add(*branches)
    engine.run()
    shared = 600 // page_size * page_size
    assert [branch.cached_tokens for branch in branches] == [0] + [shared] * 15
    assert engine.runner.computed == sum(branch.computed_tokens for branch in branches)
    prompts = engine.runner.computed - sum(branch.num_output - 1 for branch in branches)
    assert prompts == 602 + 15 * (602 - shared)
    for branch in branches:
        engine.check_answer(branch)


def test_branches_run_side_by_side() -> None:
    """Once the prefix is there, all siblings are admitted in one step."""
    engine = FakeEngine(overlap=False, num_pages=2048)
    engine.add(
        *[make_request(str(i), [*PREFIX, 3 + i], max_tokens=40, ignore_eos=True, group="fork") for i in range(16)]
    )
    engine.step()
    assert engine.scheduler.stats().running == 1
    engine.step()
    assert engine.scheduler.stats().running == 16


def test_who_waits_for_a_prefix_goes_on_when_it_is_never_computed() -> None:
    """If the request that computes the shared prefix is aborted halfway, the next takes over from where it was."""
    engine = FakeEngine(overlap=False, num_pages=2048, chunk_size=100)
    branches = [make_request(str(i), [*PREFIX, 3 + i], max_tokens=4) for i in range(4)]
    engine.add(*branches)
    engine.step()
    engine.step()
    assert engine.scheduler.stats().running == 1
    assert engine.scheduler.abort("0")
    engine.run()
    assert branches[1].cached_tokens == 200
    for branch in branches[1:]:
        engine.check_answer(branch)


def test_the_next_turn_reuses_prompt_and_output() -> None:
    """A conversation's next turn finds the whole previous turn, but for the last token, which nobody computed."""
    engine = FakeEngine()
    first = make_request("1", prompt(5, 20), max_tokens=10, ignore_eos=True)
    engine.add(first)
    engine.run()
    second = make_request("2", [*first.token_ids.tolist(), 7, 8], max_tokens=3)
    engine.add(second)
    engine.run()
    assert second.cached_tokens == 29
    engine.check_answer(second)


def test_the_last_prompt_token_is_always_computed() -> None:
    """The same prompt again computes one token."""
    engine = FakeEngine()
    for name in "ab":
        request = make_request(name, prompt(5, 20), max_tokens=2)
        engine.add(request)
        engine.run()
        engine.check_answer(request)
    assert request.cached_tokens == 19


def test_choices_share_their_prompt() -> None:
    """Score requests on one prompt compute it once, and what they add each."""
    engine = FakeEngine(num_pages=1024)
    choices = [make_request(str(i), [*PREFIX[:100], 3 + i, 5, 6], kind="score", score_from=100) for i in range(8)]
    engine.add(*choices)
    engine.run()
    assert [choice.cached_tokens for choice in choices] == [0] + [99] * 7
    assert engine.runner.computed == 102 + 7 * 3
    for choice in choices:
        engine.check_answer(choice)


def test_flush_drops_what_is_not_in_use() -> None:
    """Flushing under a running request keeps its pages."""
    engine = FakeEngine()
    engine.add(make_request("a", prompt(1, 20), max_tokens=2, ignore_eos=True))
    engine.run()
    running = make_request("b", prompt(2, 20), max_tokens=9, ignore_eos=True)
    engine.add(running)
    engine.step()
    assert engine.scheduler.flush_cache() == 21
    engine.run()
    engine.check_answer(running)


# -- memory ---------------------------------------------------------------------------------------------------------


def crowded(num_pages: int = 60, **settings: Any) -> tuple[FakeEngine, list[Request]]:
    """An engine that is promised few tokens and gets many: estimates are far too low, so it must retract."""
    engine = FakeEngine(num_pages=num_pages, grammars=GRAMMARS, **settings)
    engine.scheduler._estimate.ratio = 0.0
    made = [
        make_request(
            str(i), prompt(i, 8), max_tokens=25, ignore_eos=True, temperature=1.0, seed=i, presence_penalty=0.5
        )
        for i in range(5)
    ]
    made.append(make_request("w", prompt(9, 8), max_tokens=25, grammar=WORD.grammar))
    return engine, made


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("radix_cache", [True, False])
def test_retraction_keeps_output_stream_and_matcher(page_size: int, radix_cache: bool) -> None:
    """Retracted requests go on where they were: same random stream, same penalties, same grammar state."""
    engine, requests = crowded(60 // page_size, page_size=page_size, radix_cache=radix_cache)
    engine.add(*requests)
    engine.run()
    assert engine.scheduler.stats().retractions > 0
    assert sum(request.retractions for request in requests) == engine.scheduler.stats().retractions
    for request in requests:
        engine.check_answer(request)
    engine.check_empty()


def test_the_oldest_is_never_retracted() -> None:
    """The newest request gives way, so the oldest always gets on."""
    engine, requests = crowded()
    engine.add(*requests)
    engine.run()
    assert requests[0].retractions == 0


def test_who_has_a_higher_priority_is_retracted_last() -> None:
    """The request whose turn comes first is never retracted, however late it came, and those of one priority wait in
    the order in which they came."""
    engine, requests = crowded()
    requests[-2].priority = 1
    requests[0].priority = -1
    engine.add(*requests)
    engine.run()
    assert requests[-2].retractions == 0
    assert requests[0].retractions > 0
    assert requests[1].retractions <= requests[3].retractions
    for request in requests:
        engine.check_answer(request)


def test_a_retraction_raises_the_estimate() -> None:
    """The engine learns to keep more room."""
    engine, requests = crowded()
    engine.add(*requests)
    engine.run()
    assert engine.scheduler._estimate.ratio > 0.1


def test_scores_survive_a_retraction() -> None:
    """A score request that is retracted between chunks has every score once."""
    engine = FakeEngine(overlap=False, num_pages=70, chunk_size=16)
    engine.scheduler._estimate.ratio = 0.0
    decode = make_request("d", prompt(1), max_tokens=40, ignore_eos=True)
    score = make_request("s", PREFIX[:60], kind="score", score_from=2)
    engine.add(decode, score)
    engine.step()
    engine.step()
    assert 0 < len(score.score_logprobs) < 58
    engine.scheduler._retract(score)
    engine.run()
    engine.check_answer(score)
    engine.check_answer(decode)


def test_a_lone_request_that_cannot_fit_fails_with_the_sizes() -> None:
    """When the pool is full and nothing else runs, the request fails; the engine goes on."""
    engine = FakeEngine(num_pages=12)
    large, small = (
        make_request("l", prompt(1), max_tokens=50, ignore_eos=True),
        make_request("s", prompt(2), max_tokens=3),
    )
    engine.add(large, small)
    engine.run()
    assert large.status == "failed"
    assert isinstance(large.error, RequestError)
    assert "needs 13 tokens of KV cache, but the pool holds 12" in str(large.error)
    engine.check_answer(small)
    engine.check_empty()


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    """Such a request would wait for ever."""
    with pytest.raises(RequestError, match="600 tokens, but the KV pool holds 100"):
        FakeEngine(num_pages=100).scheduler.add(make_request("r", PREFIX))


def test_forced_text_larger_than_the_pool_fails_the_request() -> None:
    """A request that outgrows the pool before it runs does not wait for ever either."""
    chain = scripted_chain("long", [[token("a")]] * 10 + [DIGITS])
    engine = FakeEngine(num_pages=12, grammars=[chain])
    request = make_request("r", prompt(1), grammar=chain.grammar)
    engine.add(request)
    engine.run()
    assert "needs 16 tokens of KV cache, but the pool holds 12" in str(request.error)
    engine.check_empty()


def tokens_of(requests: Sequence[Request]) -> int:
    return sum(request.computed_tokens for request in requests)


def test_computed_tokens_are_counted_by_request() -> None:
    """What the runner computed is what the requests say they took, but for rows that were dropped."""
    engine, requests = crowded()
    engine.add(*requests)
    engine.run()
    dropped = engine.runner.computed - tokens_of(requests)
    assert dropped in (range(1, len(requests) + 1) if engine.overlap else [0])
