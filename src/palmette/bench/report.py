"""What a run comes to: percentiles, throughput, hit rate and errors, as plain values."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .measurement import Measured, Sample

PERCENTILES = (50, 95, 99)
BUSY_CLIENT = 0.7
"""Above this share of a core the client may be what is measured."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How some times lie, in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Report:
    """A run in numbers. A time is None where no answer has one.

    Attributes:
        requests, failed: all requests, and those without a whole answer.
        errors: how many of each kind.
        elapsed_s: from the first request to the end of the last answer.
        requests_per_s, output_tokens_per_s, prompt_tokens_per_s: of whole answers.
        cache_hit_rate: the share of prompt tokens that the server had cached, as it says; None where it says nothing.
        first_token_ms: from a request to the first text of its answer.
        inter_token_ms: between two pieces of an answer that came at different times.
        per_token_ms: of each answer, the time after its first text over its other tokens.
        end_to_end_ms: from a request to the end of its answer.
        client_cpu: the client's CPU time, as a share of one core.
    """

    requests: int
    failed: int
    errors: dict[str, int]
    elapsed_s: float
    requests_per_s: float
    output_tokens: int
    output_tokens_per_s: float
    prompt_tokens: int
    prompt_tokens_per_s: float
    cache_hit_rate: float | None
    first_token_ms: Spread | None
    inter_token_ms: Spread | None
    per_token_ms: Spread | None
    end_to_end_ms: Spread | None
    client_cpu: float


def report_of(measured: Measured) -> Report:
    """The report of a run."""
    whole = [sample for sample in measured.samples if not sample.error]
    elapsed_s = max(measured.elapsed_s, 1e-9)
    prompt, output = sum(s.prompt_tokens for s in whole), sum(s.output_tokens for s in whole)
    return Report(
        requests=len(measured.samples),
        failed=len(measured.samples) - len(whole),
        errors=dict(Counter(sample.error for sample in measured.samples if sample.error).most_common()),
        elapsed_s=measured.elapsed_s,
        requests_per_s=len(whole) / elapsed_s,
        output_tokens=output,
        output_tokens_per_s=output / elapsed_s,
        prompt_tokens=prompt,
        prompt_tokens_per_s=prompt / elapsed_s,
        cache_hit_rate=sum(s.cached_tokens for s in whole) / prompt if prompt else None,
        first_token_ms=spread_of([s.arrivals[0] - s.came for s in whole if s.arrivals]),
        inter_token_ms=spread_of([gap for s in whole for gap in _gaps(s)]),
        per_token_ms=spread_of([_per_token(s) for s in whole if s.output_tokens > 1 and len(s.arrivals) > 1]),
        end_to_end_ms=spread_of([s.ended - s.came for s in whole]),
        client_cpu=measured.client_cpu_s / elapsed_s,
    )


def spread_of(seconds: Sequence[float]) -> Spread | None:
    """How these times lie; None where there are none."""
    if not seconds:
        return None
    ordered = sorted(1000 * value for value in seconds)
    p50, p95, p99 = (percentile(ordered, rank) for rank in PERCENTILES)
    return Spread(math.fsum(ordered) / len(ordered), p50, p95, p99, ordered[-1])


def percentile(ordered: Sequence[float], rank: float) -> float:
    """The value below which `rank` per cent of the sorted values lie, between two of them where it falls there.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.5
    """
    place = (len(ordered) - 1) * rank / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _gaps(sample: Sample) -> list[float]:
    """Pieces that came in one read have no gap between them that could be measured."""
    times = sorted(set(sample.arrivals))
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _per_token(sample: Sample) -> float:
    return (sample.arrivals[-1] - sample.arrivals[0]) / (sample.output_tokens - 1)
