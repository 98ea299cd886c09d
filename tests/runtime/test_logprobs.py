"""Log-probabilities of prompts and outputs, on a scripted model: one a token, whatever the steps were."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fake_grammar import scripted_chain
from tests.fake_runner import TOKEN_BYTES, FakeModel, token
from tests.fakes import FakeEngine, make_request, text_of

from palmette.runtime.batch import Int32Array
from palmette.runtime.errors import RequestError
from palmette.runtime.logprobs import prompt_logprobs, spelled
from palmette.runtime.messages import RequestEnd
from palmette.runtime.program import TokenLogprob
from palmette.runtime.reports import report
from palmette.runtime.request import Request

PROMPT = [3 + (7 * i) % 20 for i in range(30)]


def spelling(token_id: int) -> str:
    known = TOKEN_BYTES[token_id] if token_id < len(TOKEN_BYTES) else None
    return (known or b"").decode(errors="replace")


def end_of(request: Request) -> RequestEnd:
    """What the scheduler says at the end of a request."""
    end = report(request, "", finished=True).end
    assert end is not None
    return end


def entries_of(request: Request) -> tuple[TokenLogprob | None, ...]:
    entries = prompt_logprobs(request.params, request.prompt_ids, end_of(request), spelling)
    assert entries is not None
    return entries


def check_prompt(request: Request) -> None:
    """Raise AssertionError unless the prompt's log-probabilities are those of the model."""
    first, count = request.params.prompt_logprobs_from, request.params.prompt_logprobs or 0
    entries = entries_of(request)
    assert len(entries) == len(request.prompt_ids) - first
    for place, entry in enumerate(entries, first):
        if place == 0:
            assert entry is None
            continue
        known = FakeModel().logprobs(request.prompt_ids[:place])
        assert entry is not None
        assert (entry.token_id, entry.logprob) == (request.prompt_ids[place], known[entry.token_id])
        assert [each.logprob for each in entry.top] == sorted(known.tolist(), reverse=True)[:count]
        assert all(each.logprob == known[each.token_id] for each in entry.top)


@given(
    page_size=st.sampled_from([1, 4]),
    chunk_size=st.sampled_from([1, 3, 7, 64]),
    radix_cache=st.booleans(),
    firsts=st.lists(st.integers(0, 29), min_size=1, max_size=4),
    pages=st.sampled_from([12, 200]),
)
@settings(max_examples=40)
def test_a_prompt_is_scored_the_same_however_it_is_computed(
    page_size: int, chunk_size: int, radix_cache: bool, firsts: list[int], pages: int
) -> None:
    """Chunks, pages, cached prefixes and retractions change nothing: every place asked for is there, once."""
    num_pages = max(pages, 48 // page_size)
    engine = FakeEngine(num_pages=num_pages, page_size=page_size, chunk_size=chunk_size, radix_cache=radix_cache)
    made = [
        make_request(f"r{i}", PROMPT, max_tokens=8, prompt_logprobs=i, prompt_logprobs_from=first)
        for i, first in enumerate(firsts)
    ]
    engine.add(*made, make_request("plain", PROMPT, max_tokens=8))
    engine.run()
    for request in made:
        engine.check_answer(request)
        check_prompt(request)
    engine.check_empty()


def test_a_cached_prefix_hides_no_token_whose_logprob_is_asked() -> None:
    """Behind a cached prompt, what is before the first place asked for is reused and the rest is computed."""
    engine = FakeEngine()
    engine.add(make_request("first", PROMPT, max_tokens=4))
    engine.run()
    scored = make_request("scored", PROMPT, max_tokens=4, prompt_logprobs=2, prompt_logprobs_from=20)
    engine.add(scored)
    engine.run()
    check_prompt(scored)
    assert scored.cached_tokens == 19


def test_a_retracted_request_keeps_the_scores_it_has() -> None:
    """What was scored before a retraction is not scored again: then the cached prefix is used."""
    engine = FakeEngine(num_pages=60, chunk_size=8, keep_plans=True)
    made = [make_request(name, [*PROMPT[:8], i], max_tokens=30, ignore_eos=True, prompt_logprobs=1)
            for i, name in enumerate("ab", 5)]  # fmt: skip
    engine.add(*made)
    engine.run()
    assert sum(request.retractions for request in made) > 0
    assert sum(len(plan.score_tokens) for plan in engine.runner.plans) == sum(len(r.prompt_ids) - 1 for r in made)
    for request in made:
        engine.check_answer(request)
        check_prompt(request)


def test_a_grammar_that_forces_the_whole_answer_still_has_its_prompt_scored() -> None:
    """Such a request runs for the scores alone, where it would otherwise never run."""
    chain = scripted_chain("word", [[token("a")], [token("b")]])
    engine = FakeEngine(grammars=[chain])
    request = make_request("r", PROMPT, grammar=chain.grammar, prompt_logprobs=3)
    engine.add(request)
    engine.run()
    assert text_of(request).text == "ab"
    check_prompt(request)


@pytest.mark.parametrize("first", [30, 31, 1000])
def test_a_place_past_the_prompt_is_refused(first: int) -> None:
    """The message names the place, the prompt's length and what is allowed."""
    request = make_request("r", PROMPT, prompt_logprobs=0, prompt_logprobs_from=first)
    with pytest.raises(RequestError, match=rf"prompt_logprobs_from={first} is past the prompt of 30 .* 0 to 29"):
        FakeEngine().add(request)


@pytest.mark.parametrize("changes", [{}, {"return_text_in_logprobs": True}])
def test_texts_come_where_they_are_asked_for(changes: dict[str, Any]) -> None:
    """Every token of output, prompt and likeliest has its text, or none has."""
    request = make_request("r", PROMPT, max_tokens=4, logprobs=2, prompt_logprobs=2, **changes)
    engine = FakeEngine()
    engine.add(request)
    engine.run()
    entries = [*spelled(end_of(request).logprobs, request.params, spelling), *entries_of(request)[1:]]
    assert len(entries) == request.num_output + 29
    for entry in entries:
        assert entry is not None
        assert entry.text == (spelling(entry.token_id) if changes else None)
        for each in entry.top:
            assert each.text == (spelling(each.token_id) if changes else None)


def test_nothing_asked_is_none() -> None:
    """Without the options there are no entries at all."""
    request = make_request("r", PROMPT, max_tokens=2)
    engine = FakeEngine()
    engine.add(request)
    engine.run()
    assert prompt_logprobs(request.params, request.prompt_ids, end_of(request), spelling) is None
    assert end_of(request).logprobs == ()


class RulingOut(FakeModel):
    """The fake model, which rules out every second token."""

    def logprobs(self, context: Int32Array) -> npt.NDArray[np.float32]:
        logprobs = super().logprobs(context)
        logprobs[::2] = -np.inf
        return logprobs


def test_a_token_that_the_model_rules_out_has_a_finite_logprob() -> None:
    """Events travel as JSON, which has no infinity: a client would read null where it expects a number."""
    engine = FakeEngine()
    engine.runner.model = RulingOut()
    generated = make_request("g", PROMPT, max_tokens=4, ignore_eos=True, logprobs=40, prompt_logprobs=40)
    scored = make_request("s", PROMPT, kind="score", score_from=1)
    engine.add(generated, scored)
    engine.run()
    assert min(scored.score_logprobs) == -9999
    ends = [end_of(generated), end_of(scored)]
    assert msgspec.json.decode(msgspec.json.encode(ends), type=list[RequestEnd]) == ends
