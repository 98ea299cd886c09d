"""Every backend is told which program runs, and engines keep what it goes on from while it is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.five_backends import wait_until_free

import palmette as pt
from palmette.runtime.engine import Engine
from palmette.runtime.processes.runtime_client import Runtime


@pt.function(max_tokens=8)
def two_calls(s: pt.ProgramState, meanwhile: Callable[[], None]) -> None:
    s += "A river of words, " * 4 + pt.gen("first")
    s["first"]
    meanwhile()
    s += " and " + pt.gen("second")


def test_a_backend_is_told_the_functions_name(backend: pt.Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for every run."""
    opened: list[str | None] = []
    usual = backend.open

    def noted(events: Any, *, program: str | None = None) -> Any:
        opened.append(program)
        return usual(events, program=program)

    monkeypatch.setattr(backend, "open", noted)
    for _ in range(2):
        assert two_calls.run(lambda: None, backend=backend)["second"]
    assert opened == ["two_calls", "two_calls"]


@pytest.mark.parametrize("backend", ["engine", "processes", "http"], indirect=True)
def test_an_engine_keeps_what_a_program_goes_on_from(backend: pt.Backend, request: pytest.FixtureRequest) -> None:
    """While the program is away its prefix is locked, and no longer."""
    engine: Engine | Runtime = (
        backend if isinstance(backend, Engine | Runtime) else request.getfixturevalue("tiny_engine")
    )
    protected: list[int] = []

    def look() -> None:
        stats = engine.stats()
        assert stats.running == 0
        protected.append(stats.protected_pages)

    state = two_calls.run(look, backend=backend)
    assert protected[0] >= state.get_meta_info("first")["prompt_tokens"]
    wait_until_free(engine)
