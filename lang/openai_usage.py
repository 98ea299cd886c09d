"""What a backend has used of a service."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenAIUsage:
    """What an `OpenAIBackend` has used so far, as the service counts it.

    Attributes:
        requests: that were answered, those included whose answers broke their grammar and were asked for again.
        prompt_tokens, cached_tokens: of prompts, and how many of them the service had cached.
        completion_tokens: of answers, with what the model thought where the service counts that.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def cost(self, *, prompt: float, completion: float, cached: float | None = None) -> float:
        """What this costs, in the currency of the prices.

        Args:
            prompt, completion: prices of a million tokens.
            cached: that of a million cached prompt tokens; None is the price of others.

        >>> OpenAIUsage(requests=2, prompt_tokens=3_000, cached_tokens=1_000, completion_tokens=500).cost(
        ...     prompt=2.0, completion=8.0, cached=0.5
        ... )
        0.0085
        """
        fresh = self.prompt_tokens - self.cached_tokens
        priced = fresh * prompt + self.cached_tokens * (prompt if cached is None else cached)
        return (priced + self.completion_tokens * completion) / 1e6


class UsageMeter:
    """Adds up usage from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = OpenAIUsage()

    @property
    def total(self) -> OpenAIUsage:
        with self._lock:
            return self._total

    def add(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> None:
        """Count one answered request."""
        with self._lock:
            total = self._total
            self._total = OpenAIUsage(
                total.requests + 1,
                total.prompt_tokens + prompt_tokens,
                total.cached_tokens + cached_tokens,
                total.completion_tokens + completion_tokens,
            )
