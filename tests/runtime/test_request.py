"""A request's tokens and status."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from tests.fake_runner import END_ID
from tests.fakes import make_request, make_score

from palmette.constrained import Grammar, PalmetteError
from palmette.runtime.errors import EngineError, RequestAbortedError, RequestError
from palmette.runtime.request import Request, Status, check_request

LEGAL = {
    ("waiting_grammar", "waiting"),
    ("waiting", "running"),
    ("waiting", "finished"),
    ("running", "waiting"),
    ("running", "finished"),
    *((status, end) for status in ("waiting_grammar", "waiting", "running") for end in ("aborted", "failed")),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(get_args(Status), repeat=2)))
def test_status_moves_by_one_table(before: Status, after: Status) -> None:
    """Every step of the status is legal or refused, and a refused one changes nothing."""
    request = make_request("r", [3])
    request.status = before
    if (before, after) in LEGAL:
        request.move_to(after)
        assert request.status == after
    else:
        with pytest.raises(EngineError, match=f"cannot go from {before} to {after}"):
            request.move_to(after)
        assert request.status == before


def test_a_request_with_a_grammar_waits_for_it() -> None:
    """The first status says what a request waits for."""
    assert make_request("r", [3]).status == "waiting"
    assert make_request("r", [3], grammar=Grammar.regex("a")).status == "waiting_grammar"


def test_ends_say_why() -> None:
    """Finish, failure and abort leave their reason in the request."""
    finished, failed, aborted = (make_request(name, [3]) for name in "fxa")
    for request in (finished, failed, aborted):
        request.move_to("running")
    error = PalmetteError("no")
    finished.finish("stop", END_ID)
    failed.fail(error)
    aborted.abort()
    assert (finished.finish_reason, finished.matched) == ("stop", END_ID)
    assert failed.error is error
    assert aborted.finish_reason == "abort"
    assert isinstance(aborted.error, RequestAbortedError)
    assert [request.is_active for request in (finished, failed, aborted)] == [False] * 3


def test_prefill_decode_and_forced_text_are_the_same() -> None:
    """What remains is everything known that was not computed, whatever it came from."""
    request = make_request("r", [3, 4, 5], max_tokens=4)
    assert (request.end, request.remaining) == (3, 3)
    request.num_computed = 3
    for token_id in (6, 7):
        request.append(token_id)
    assert request.remaining == 2
    assert request.token_ids.tolist() == [3, 4, 5, 6, 7]
    assert request.output_ids.tolist() == [6, 7]
    assert (request.num_output, request.tokens_left) == (2, 2)


def test_the_last_token_is_always_computed() -> None:
    """A cached prefix leaves the token whose logits are wanted."""
    request = make_request("r", [3, 4, 5])
    assert request.longest_prefix == 2
    request.append(6)
    assert request.longest_prefix == 3


def test_a_score_request_computes_what_predicts_its_tokens() -> None:
    """Token i is scored by the logits at i - 1, so the last token is not computed and the one before the first is."""
    request = make_request("r", [3, 4, 5, 6, 7], kind="score", score_from=3)
    assert request.end == 4
    assert request.longest_prefix == 2
    request.score_logprobs.append(-1.0)
    assert request.longest_prefix == 3


def test_stop_ids() -> None:
    """ignore_eos leaves the caller's stop tokens."""
    assert make_request("r", [3], stop_token_ids=(9,)).stop_ids == {9, 1, 2}
    assert make_request("r", [3], stop_token_ids=(9,), ignore_eos=True).stop_ids == {9}


def check(request: Request, context_length: int = 8, pool_tokens: int = 100) -> None:
    check_request(request, context_length=context_length, pool_tokens=pool_tokens)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (make_request("r", []), "prompt is empty"),
        (make_request("r", [3] * 8), "8 tokens, but at most 7 fit this model's context of 8"),
        (make_request("r", [3] * 9, kind="score", score_from=1), "9 tokens, but at most 8"),
        (make_score("r", [[3], [3] * 9, [3, 4]], 1), "a choice have 9 tokens, but at most 8"),
    ],
)
def test_impossible_requests_are_refused_with_numbers(request_: Request, message: str) -> None:
    """A request that cannot run says what is too much and what is allowed."""
    with pytest.raises(RequestError, match=message):
        check(request_)


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    """The message names both sizes and the setting."""
    with pytest.raises(RequestError, match=r"6 tokens, but the KV pool holds 5.*max_total_tokens"):
        check(make_request("r", [3] * 6), pool_tokens=5)
    check(make_request("r", [3] * 5), pool_tokens=5)
    check(make_request("r", [3] * 6, kind="score", score_from=2), pool_tokens=5)
