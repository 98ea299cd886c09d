"""A real model behind a real service answers several generations at once, as it would have one by one."""

from __future__ import annotations

from tests.native_server import served

import palmette as pt
from palmette.runtime.engine import Engine

CARDS = (
    "Name: Marie Curie\nBorn: 7 November 1867\nJob: physicist\n\n"
    "Name: Charles Darwin\nBorn: 12 February 1809\nJob: naturalist\n\n"
    "Name: Alan Turing\nBorn: 23 June 1912\nJob: mathematician\n\n"
)


def card(s: pt.ProgramState) -> None:
    s += CARDS + "Name: Albert" + pt.gen("name", stop="\n", max_tokens=40)
    s += "\nBorn:" + pt.gen("born", stop="\n", max_tokens=40)
    s += "\nJob:" + pt.gen("job", stop="\n", max_tokens=40)


def test_one_request_for_three_answers(default_engine: Engine) -> None:
    """The answers are the same, and the model was asked once instead of three times."""
    one_by_one = pt.function(temperature=0)(card)
    together = pt.function(temperature=0, num_api_spec_tokens=64)(card)
    with served(default_engine) as server:
        name = default_engine.model_info.name
        with pt.OpenAIBackend(name, base_url=f"{server.url}/v1", chat=False) as backend:
            plain, guessed = one_by_one.run(backend=backend), together.run(backend=backend)
            assert [guessed[name] for name in ("name", "born", "job")] == [
                plain[name] for name in ("name", "born", "job")
            ]
            assert backend.usage_of(plain).requests == 3
            assert (backend.usage_of(guessed).requests, backend.usage_of(guessed).speculated) == (1, 2)
            assert backend.usage_of(guessed).prompt_tokens < backend.usage_of(plain).prompt_tokens / 2
