"""Failures of the engine as answers to HTTP clients."""

from __future__ import annotations

import pytest

from palmette.runtime.program import Failed
from palmette.runtime.server.errors import failed


@pytest.mark.parametrize(
    ("event", "status", "headers"),
    [
        (Failed(1, "EngineError", "logits are NaN"), 500, {}),
        (Failed(1, "EngineError", "the engine is gone", 4.2), 503, {"retry-after": "5"}),
        (Failed(1, "QueueFullError", "too many wait", 0.1), 503, {"retry-after": "1"}),
        (Failed(1, "RequestError", "max_tokens is wrong"), 400, {}),
    ],
)
def test_a_failure_has_its_status(event: Failed, status: int, headers: dict[str, str]) -> None:
    """A defect is 500; what may go well later is 503 and says when; the caller's mistake is 400."""
    error = failed(event)
    assert error.status_code == status
    assert dict(error.headers or {}) == headers
