"""What becomes of one token."""

from __future__ import annotations

import pytest
from tests.fake_grammar import forced_tokens, scripted_chain
from tests.fake_runner import END_ID, token
from tests.fakes import make_request

from palmette.constrained import TokenRejectedError
from palmette.runtime.generation import Generation
from palmette.runtime.program import TokenLogprob
from palmette.runtime.request import Request

CALL = scripted_chain("call", [[token("a")], [token("b")], [token("c"), token("d")], [token("e")]])


def running(request: Request) -> Request:
    """The request as it is when a row of it was just computed."""
    request.move_to("waiting") if request.status == "waiting_grammar" else None
    request.move_to("running")
    request.num_computed = request.end
    return request


def test_a_token_becomes_text() -> None:
    """An ordinary token is appended and shown, with its log-probability."""
    request, entry = running(make_request("r", [3], logprobs=0)), TokenLogprob(token("a"), -1.0)
    assert Generation(None).take(request, token("a"), entry) == "a"
    assert request.output_ids.tolist() == [token("a")]
    assert request.logprobs == [entry]
    assert request.status == "running"


def test_an_end_token_before_min_tokens_does_not_end() -> None:
    """Should the sampler let one through, the output goes on, and the token shows no text."""
    request = running(make_request("r", [3], min_tokens=1))
    generation = Generation(None)
    assert generation.take(request, END_ID, None) == ""
    assert request.status == "running"
    generation.take(request, END_ID, None)
    assert (request.status, request.finish_reason, request.matched) == ("finished", "stop", END_ID)


def test_held_back_text_comes_with_the_end() -> None:
    """Text that could have begun a stop string is shown when the output ends without it."""
    request = running(make_request("r", [3], stop=("ax",), max_tokens=2))
    generation = Generation(None)
    assert generation.take(request, token("b"), None) == "b"
    assert generation.take(request, token("a"), None) == "a"
    assert request.finish_reason == "length"


def test_forced_text_comes_with_the_token_before_it() -> None:
    """The text of a step holds the sampled token and all that it forces; forced tokens are counted."""
    generation = Generation(forced_tokens)
    request = make_request("r", [3], grammar=CALL.grammar)
    request.move_to("waiting")
    assert generation.begin(request, CALL.compiled()) == "ab"
    running(request)
    assert generation.take(request, token("d"), None) == "de"
    assert (request.forced, request.num_output, request.finish_reason) == (3, 4, "grammar")


def test_a_token_that_the_grammar_forbids_is_an_error() -> None:
    """A token out of the mask is a defect, told at once; nothing of it is taken."""
    generation = Generation(None)
    request = make_request("r", [3], grammar=CALL.grammar)
    request.move_to("waiting")
    generation.begin(request, CALL.compiled())
    with pytest.raises(TokenRejectedError):
        generation.take(running(request), token("z"), None)
    assert request.num_output == 0


def test_a_stop_pattern_ends_the_output() -> None:
    """The reason is stop, and what matched is told; one that waited for the end is found at max_tokens too."""
    request = running(make_request("r", [3], stop_regex=("[0-9]+x",), max_tokens=9))
    generation = Generation(None)
    shown = [generation.take(request, token(text), None) for text in ("a", "1", "2", "x")]
    assert (shown, request.finish_reason, request.matched) == (["a", "", "", ""], "stop", "12x")
    waiting = running(make_request("r", [3], stop_regex=("[0-9]$",), max_tokens=2))
    assert generation.take(waiting, token("a"), None) + generation.take(waiting, token("1"), None) == "a"
    assert (waiting.finish_reason, waiting.matched) == ("stop", "1")
