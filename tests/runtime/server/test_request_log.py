"""The line of log of an HTTP request."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from palmette.runtime.program import Completion, Generated, Selected
from palmette.runtime.server.request_log import UNKNOWN, TokenCounts, log_request


def written(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    """The fields of the only record."""
    (record,) = caplog.records
    assert record.getMessage() == "request"
    fields = vars(record)["palmette_fields"]
    assert isinstance(fields, dict)
    return fields


def completion(prompt: int, cached: int, output: int, forced: int) -> Completion:
    return Completion(
        text="",
        token_ids=(),
        finish_reason="stop",
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=output,
        forced_tokens=forced,
    )


def test_counts_of_a_request() -> None:
    """Answers of one node share their prompt; a select has a prompt and no output."""
    counts = TokenCounts()
    counts.add(Generated(0, (completion(10, 4, 5, 1), completion(10, 10, 7, 0))))
    counts.add(Selected(1, 0, prompt_tokens=3, cached_tokens=2))
    assert counts == TokenCounts(prompt=13, cached=6, output=12, forced=1)


def test_fields(caplog: pytest.LogCaptureFixture) -> None:
    """The line has the request's id, route, status, tokens and times, and not its path or query."""
    caplog.set_level(logging.INFO, "palmette")
    state = {"request_id": "req-1", "tokens": TokenCounts(prompt=10, cached=4, output=5)}
    route = SimpleNamespace(path="/v1/models/{name}")
    log_request({"method": "GET", "path": "/v1/models/pear", "state": state, "route": route}, 200, 0.25, 0.1)
    assert written(caplog) == {
        "request_id": "req-1",
        "method": "GET",
        "route": "/v1/models/{name}",
        "status": 200,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
        "first_ms": 100.0,
        "ms": 250.0,
    }


def test_what_a_client_made_up_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    """A path that no route has, and a method that is none, are the client's text."""
    caplog.set_level(logging.INFO, "palmette")
    log_request({"method": "XYLOPHONE", "path": "/xylophone"}, 404, 0.001)
    assert written(caplog) == {"method": UNKNOWN, "route": UNKNOWN, "status": 404, "ms": 1.0}


@pytest.mark.parametrize(("status", "level"), [(200, logging.DEBUG), (503, logging.INFO)])
def test_watching_is_quiet(caplog: pytest.LogCaptureFixture, status: int, level: int) -> None:
    """What asks every few seconds is written at level debug, unless something is wrong."""
    caplog.set_level(logging.DEBUG, "palmette")
    log_request({"method": "GET", "path": "/health", "route": SimpleNamespace(path="/health")}, status, 0.001)
    assert [record.levelno for record in caplog.records] == [level]
