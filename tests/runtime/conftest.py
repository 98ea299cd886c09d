"""Fixtures of the runtime's tests."""

from __future__ import annotations

import pytest
from tests.fakes import FakeEngine


@pytest.fixture(params=[False, True], ids=["normal", "overlap"])
def both_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs a test twice: with one step after the other, and with steps that overlap. Tells which."""
    overlaps: bool = request.param
    monkeypatch.setattr(FakeEngine, "overlaps", overlaps)
    return overlaps
