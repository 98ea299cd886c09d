"""Calls of programs for the tests of the scheduler, and what is known of their programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fakes import FakeEngine, make_request

from palmette.runtime.kept_prefixes import KeptPrefixes
from palmette.runtime.messages import ProgramPlace
from palmette.runtime.request import Request


def make_call(
    program: str,
    request_id: str,
    prompt: Sequence[int],
    *,
    name: str = "agent",
    continued: bool = True,
    later_tokens: int = 0,
    **params: Any,
) -> Request:
    """A request of a program; its output has max_tokens tokens, 2 unless `params` say otherwise."""
    request = make_request(request_id, prompt, **{"max_tokens": 2, "ignore_eos": True, **params})
    request.place = ProgramPlace(id=program, name=name, continued=continued, later_tokens=later_tokens)
    return request


def run_call(engine: FakeEngine, program: str, request_id: str, prompt: Sequence[int], **how: Any) -> Request:
    """Run a call of a program, and whatever else there is, to the end."""
    request = make_call(program, request_id, prompt, **how)
    engine.add(request)
    engine.run()
    return request


def whole_text(request: Request) -> list[int]:
    """Prompt and output: what continues the request begins with it."""
    tokens: list[int] = request.token_ids.tolist()
    return tokens


def kept_of(engine: FakeEngine) -> KeptPrefixes:
    """What the engine keeps for programs."""
    kept = engine.memory.kept
    assert kept is not None
    return kept


def check_forgotten(engine: FakeEngine) -> None:
    """Raise AssertionError unless nothing is known of any program that is over, and nothing is kept or promised."""
    table = engine.scheduler._programs
    assert not table._programs
    assert abs(table.promised) < 1e-3
    if engine.memory.kept is not None:
        assert not len(engine.memory.kept)
    stats = engine.scheduler.stats()
    assert stats.protected_pages == 0
    assert stats.free_pages + stats.evictable_pages == stats.total_pages
