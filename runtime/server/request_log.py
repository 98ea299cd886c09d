"""The line of log that each HTTP request gets: what it was, how it ended, what it cost. Never its text."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from starlette.types import Scope

from palmette.runtime.logging_setup import fields
from palmette.runtime.program import Generated, Selected

logger = logging.getLogger("palmette.request")

UNKNOWN = "unknown"
"""Stands for a path that no route has, and for such a method: it is the client's text, and could be anything."""

METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))

WATCHING = frozenset(("/health", "/metrics", "/page/state"))
"""Routes that are asked every few seconds: their lines are of level debug where all is well."""


@dataclass(slots=True)
class TokenCounts:
    """Tokens of one HTTP request.

    Attributes:
        prompt, cached: of its prompts; those that were found in the radix cache.
        output, forced: generated; those that a grammar forced.
    """

    prompt: int = 0
    cached: int = 0
    output: int = 0
    forced: int = 0

    def add(self, event: Generated | Selected) -> None:
        """Count the end of a node. The answers of one node share their prompt."""
        if isinstance(event, Selected):
            self.prompt += event.prompt_tokens
            self.cached += event.cached_tokens
            return
        for place, completion in enumerate(event.completions):
            if place == 0:
                self.prompt += completion.prompt_tokens
                self.cached += completion.cached_tokens
            self.output += completion.completion_tokens
            self.forced += completion.forced_tokens


def log_request(scope: Scope, status: int, elapsed_s: float, first_s: float | None = None) -> None:
    """Log a request that ended.

    Args:
        scope: its ASGI scope. Its state may have a `request_id` and `tokens`, a `TokenCounts`.
        status: that it was answered with; 499 where the client hung up before.
        elapsed_s: from its arrival to the end of its answer.
        first_s: to the first bytes of its answer, where that says something: for a stream.
    """
    route = getattr(scope.get("route"), "path", UNKNOWN)
    level = logging.DEBUG if route in WATCHING and status == 200 else logging.INFO
    if not logger.isEnabledFor(level):
        return
    state = scope.get("state", {})
    counts: TokenCounts | None = state.get("tokens")
    logger.log(
        level,
        "request",
        extra=fields(
            request_id=state.get("request_id"),
            method=scope["method"] if scope["method"] in METHODS else UNKNOWN,
            route=route,
            status=status,
            prompt_tokens=counts.prompt if counts else None,
            cached_tokens=counts.cached if counts else None,
            output_tokens=counts.output if counts else None,
            forced_tokens=counts.forced or None if counts else None,
            first_ms=None if first_s is None else round(first_s * 1000, 1),
            ms=round(elapsed_s * 1000, 1),
        ),
    )
