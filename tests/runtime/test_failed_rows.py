"""A row whose logits cannot be sampled ends its own request, and no other."""

from __future__ import annotations

import pytest
from tests.fake_grammar import scripted_chain
from tests.fake_runner import BROKEN, BrokenModel, FakeModel, token
from tests.fakes import FakeEngine, expected_answer, make_request

from palmette.runtime.batch import NOT_FINITE, NOTHING_ALLOWED
from palmette.runtime.errors import EngineError

_LETTERS = [token(letter) for letter in "abc"]


def _engine(failure: int = NOT_FINITE, length: int = 0, *, chunk_size: int = 512) -> FakeEngine:
    engine = FakeEngine(grammars=[scripted_chain("letters", [_LETTERS] * 3)], chunk_size=chunk_size)
    engine.runner.model = BrokenModel(failure, length)
    return engine


@pytest.mark.parametrize("chunk_size", [3, 512])
def test_logits_that_are_not_finite_fail_their_request_alone(chunk_size: int) -> None:
    """The neighbours of the step get their right answers, the error names the request, and all pages come back."""
    engine = _engine(chunk_size=chunk_size)
    neighbours = [make_request(f"n{i}", [5 + i, 6, 7, 8], max_tokens=9) for i in range(3)]
    broken = make_request("broken", [BROKEN, 6, 7, 8], max_tokens=9, logprobs=1)
    engine.add(*neighbours[:2], broken, *neighbours[2:])
    engine.run()
    for neighbour in neighbours:
        engine.check_answer(neighbour)
    assert broken.status == "failed"
    assert isinstance(broken.error, EngineError)
    with pytest.raises(EngineError, match=r"request broken failed within its first 4 tokens: .* NaN or infinite"):
        raise broken.error
    assert (broken.num_output, broken.logprobs) == (0, [])
    engine.check_empty()


def test_output_before_the_failure_stays() -> None:
    """A request that fails in the middle has told the text that came before, and has one end."""
    request = make_request("r", [BROKEN, 6], max_tokens=9, ignore_eos=True)
    expected = expected_answer(request, 4096)
    engine = _engine(length=6)
    engine.add(request)
    assert engine.run() == [request]
    assert request.output_ids.tolist() == list(expected.output[:4])
    assert expected.text.startswith(engine.texts["r"])
    assert (request.status, request.finish_reason) == ("failed", None)
    engine.check_empty()


def test_what_a_failed_row_computed_is_not_cached() -> None:
    """Keys and values that may be NaN reach nobody through the radix cache; what was computed before may be reused."""
    engine = _engine()
    engine.add(make_request("r", [BROKEN, 6, 7], max_tokens=9))
    engine.run()
    engine.runner.model = FakeModel()
    again = make_request("again", [BROKEN, 6, 7], max_tokens=9)
    engine.add(again)
    engine.run()
    engine.check_answer(again)
    assert again.cached_tokens == 0


def test_a_mask_that_allows_nothing_fails_its_request_alone() -> None:
    """A constrained request that nothing can be sampled for is an error, never unconstrained; mask rows come back."""
    engine = _engine(NOTHING_ALLOWED, 3)
    grammar = next(iter(engine.grammars))
    broken = make_request("broken", [BROKEN, 6], grammar=grammar)
    neighbour = make_request("n", [5, 6], grammar=grammar)
    engine.add(broken, neighbour)
    engine.run()
    engine.check_answer(neighbour)
    assert "broken cannot go on after 3 tokens of prompt and output" in str(broken.error)
    engine.check_empty()


@pytest.mark.parametrize("chunk_size", [2, 512])
def test_scores_that_are_not_finite_fail_their_request_alone(chunk_size: int) -> None:
    """NaN is never handed out as a log-probability."""
    engine = _engine(length=4, chunk_size=chunk_size)
    prompt = [6, 7, 8, 9, 10]
    broken = make_request("broken", [BROKEN, *prompt], kind="score", score_from=1)
    neighbour = make_request("n", [5, *prompt], kind="score", score_from=2)
    engine.add(broken, neighbour)
    engine.run()
    engine.check_answer(neighbour)
    assert broken.status == "failed"
    assert "NaN or infinite" in str(broken.error)
    engine.check_empty()
