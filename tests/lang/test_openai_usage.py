"""What a backend counts of a service's work, in all, by program and by run, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fake_openai import Asked, FakeOpenAI, Refusal, Reply, says

import palmette as pt
from palmette.lang import openai_service

PRICES = {"prompt": 2.0, "completion": 8.0, "cached": 0.5}
USAGE = {"prompt_tokens": 1000, "completion_tokens": 500, "prompt_tokens_details": {"cached_tokens": 200}}
COST = (800 * 2.0 + 200 * 0.5 + 500 * 8.0) / 1e6


@pt.function
def ask(s: pt.ProgramState, questions: int) -> None:
    for place in range(questions):
        s += f"q{place}" + pt.gen(f"a{place}")


@pt.function
def other(s: pt.ProgramState) -> None:
    s += "other" + pt.gen("x")


def answer(asked: Asked) -> Reply:
    return says("a", usage=USAGE)


def test_cost_in_all_by_program_and_by_run() -> None:
    """Every run is counted by itself, and in what its program and all programs have used, from any thread."""
    with FakeOpenAI(answer) as service, pt.OpenAIBackend("m", base_url=service.url, prices=PRICES) as backend:
        states = ask.run_batch([{"questions": count} for count in (1, 2, 3)] * 4, backend=backend, num_threads=8)
        single = other.run(backend=backend)
        assert [backend.usage_of(state).requests for state in states] == [1, 2, 3] * 4
        assert backend.cost_of(states[1]) == pytest.approx(2 * COST)
        assert {name: usage.requests for name, usage in backend.usage_by_program.items()} == {"ask": 24, "other": 1}
        assert backend.usage_of(single) == backend.usage_by_program["other"]
        assert backend.usage.prompt_tokens == 25_000
        assert backend.cost == pytest.approx(25 * COST)


def test_cached_tokens_cost_what_others_do_unless_said() -> None:
    """A price for them is not needed."""
    prices = {"prompt": 2.0, "completion": 8.0}
    with FakeOpenAI(answer) as service, pt.OpenAIBackend("m", base_url=service.url, prices=prices) as backend:
        other.run(backend=backend)
        assert backend.cost == pytest.approx((1000 * 2.0 + 500 * 8.0) / 1e6)


def test_retries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the client, and those of a stream that broke before its first text; what failed costs nothing."""
    monkeypatch.setattr(openai_service, "RETRY_S", 0.01)
    again = {"retry-after": "0.01"}
    script: list[Reply] = [Refusal(429, headers=again), Refusal(503, headers=again), says("a", usage=USAGE)]
    script += [says("never", breaks_after=0), says("b", usage=USAGE)]
    with FakeOpenAI(script) as service, pt.OpenAIBackend("m", base_url=service.url, max_retries=2) as backend:
        first = other.run(backend=backend)
        assert (first["x"], backend.usage_of(first).retries, backend.usage_of(first).requests) == ("a", 2, 1)
        second = other.stream(backend=backend)
        assert second["x"] == "b"
        assert backend.usage_of(second).retries == 1
        assert (backend.usage.retries, backend.usage.prompt_tokens) == (3, 2000)


def test_answers_that_break_their_grammar_are_paid_for() -> None:
    """They are requests like others."""

    @pt.function
    def number(s: pt.ProgramState) -> None:
        s += "n" + pt.gen("x", regex="[0-9]")

    script = [says("no", usage=USAGE), says("7", usage=USAGE)]
    with FakeOpenAI(script) as service, pt.OpenAIBackend("m", base_url=service.url, prices=PRICES) as backend:
        state = number.run(backend=backend)
        assert state["x"] == "7"
        assert backend.usage_of(state).requests == 2
        assert backend.cost_of(state) == pytest.approx(2 * COST)
        assert state.get_meta_info("x")["prompt_tokens"] == 1000


def test_without_prices_or_on_another_backend() -> None:
    """The errors say what is missing."""
    with (
        FakeOpenAI(answer) as service,
        pt.OpenAIBackend("m", base_url=service.url) as backend,
        pt.OpenAIBackend("m", base_url=service.url) as elsewhere,
    ):
        state = other.run(backend=backend)
        with pytest.raises(ValueError, match="was given no prices"):
            _ = backend.cost
        for unknown, where in ((state, elsewhere), (other.run(backend=pt.MockBackend(["a"])), backend)):
            with pytest.raises(ValueError, match="did not run on this backend"):
                where.usage_of(unknown)


@pytest.mark.parametrize(
    "prices",
    [
        {"prompt": 1.0},
        {"prompt": 1.0, "completion": 1.0, "output": 2.0},
        {"prompt": -1.0, "completion": 1.0},
        {"prompt": float("inf"), "completion": 1.0},
        {"prompt": "1", "completion": 1.0},
        3,
    ],
)
def test_wrong_prices_are_refused(prices: Any) -> None:
    """The error shows what prices look like, or which of them is none."""
    with pytest.raises(ValueError, match="prices"):
        pt.OpenAIBackend("m", base_url="http://127.0.0.1:9/v1", prices=prices)
