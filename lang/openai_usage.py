"""What a backend has used of a service, and what that costs."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class OpenAIUsage:
    """What was used of a service, as the service counts it.

    Attributes:
        requests: that were answered, those included whose answers broke their grammar and were asked for again.
        retries: requests that were sent once more after a lost connection, a timeout, or a status of 408, 409, 429 or
            5xx. Services charge for what they answer, so mostly nothing for the tries before.
        speculated: generations that needed no request: an earlier answer held theirs as well.
        prompt_tokens, cached_tokens: of prompts, and how many of them the service had cached.
        completion_tokens: of answers, with what the model thought where the service counts that.
    """

    requests: int = 0
    retries: int = 0
    speculated: int = 0
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


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens; `cached` is that of prompt tokens which the service had cached."""

    prompt: float
    completion: float
    cached: float

    def of(self, usage: OpenAIUsage) -> float:
        """What a usage costs."""
        return usage.cost(prompt=self.prompt, completion=self.completion, cached=self.cached)


def checked_prices(prices: Mapping[str, float]) -> Prices:
    """The prices that a user gave.

    Raises:
        ValueError: one is missing, unknown, or no amount.
    """
    names = [field.name for field in fields(Prices)]
    given = dict(prices) if isinstance(prices, Mapping) else {}
    if not {"prompt", "completion"} <= set(given) <= set(names):
        raise ValueError(
            "prices must be those of a million tokens, by 'prompt', 'completion' and, where cached prompt tokens are "
            f"cheaper, 'cached', such as {{'prompt': 2.0, 'completion': 8.0, 'cached': 0.5}}, not {prices!r}"
        )
    for name, price in given.items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
            raise ValueError(f"prices[{name!r}] must be the price of a million tokens, at least 0, not {price!r}")
    return Prices(given["prompt"], given["completion"], given.get("cached", given["prompt"]))


class UsageMeter:
    """Adds up usage, from any thread, here and in the meters of what this is a part of."""

    def __init__(self, *parts_of: UsageMeter) -> None:
        self._parts_of = parts_of
        self._lock = threading.Lock()
        self._total = OpenAIUsage()

    @property
    def total(self) -> OpenAIUsage:
        with self._lock:
            return self._total

    def is_part_of(self, meter: UsageMeter) -> bool:
        """Whether what is added here is added there."""
        return any(above is meter or above.is_part_of(meter) for above in self._parts_of)

    def add(self, **more: int) -> None:
        """Add to the counts of these names."""
        with self._lock:
            total = self._total
            self._total = replace(total, **{name: getattr(total, name) + count for name, count in more.items()})
        for meter in self._parts_of:
            meter.add(**more)


METER: ContextVar[UsageMeter] = ContextVar("palmette_openai_meter")
"""Of the program whose request the running task makes."""
