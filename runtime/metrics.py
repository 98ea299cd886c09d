"""What a server counts, and when, for Prometheus.

The scheduler's counts are read when somebody asks for the metrics. Latencies are taken where events pass on their way
to a client, by `MeasuredService`, so every protocol is measured alike:

- time to first token: of streamed generations, from when their prompt was complete to their first text;
- inter-token: between two pieces of text of one streamed answer;
- generation: of all generations, from when their prompt was complete to their end.

All but the registry is for the thread of one event loop and takes no lock: an observation costs under a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .messages import SchedulerStats

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the buckets of every histogram."""

MOST_LABELS = 1000
"""So many combinations of method, path and status are counted apart; the paths are those of routes, so they are few."""


class Histogram:
    """Counts of observations by size."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulated counts by upper bound, and the sum of all observations."""
        bounds = [*map(repr, SECONDS), "+Inf"]
        total = 0.0
        cumulated = []
        for bound, count in zip(bounds, self._counts, strict=True):
            total += count
            cumulated.append((bound, total))
        return cumulated, self._sum


class Metrics:
    """The counts of one server.

    Attributes:
        open_http_requests: being answered now.
    """

    def __init__(self) -> None:
        self.open_http_requests = 0
        self.first_token = Histogram()
        self.inter_token = Histogram()
        self.generation = Histogram()
        self._failures: dict[str, int] = {}
        self._http: dict[tuple[str, str, str], int] = {}
        self._http_seconds: dict[str, Histogram] = {}

    def count_http(self, method: str, path: str, status: int, elapsed_s: float) -> None:
        """An HTTP request was answered. `path` is that of its route."""
        key = (method, path, str(status))
        if key in self._http or len(self._http) < MOST_LABELS:
            self._http[key] = self._http.get(key, 0) + 1
            self._http_seconds.setdefault(path, Histogram()).observe(elapsed_s)

    def count_failure(self, kind: str) -> None:
        """A generation or select failed; `kind` names the class of its error."""
        if kind in self._failures or len(self._failures) < MOST_LABELS:
            self._failures[kind] = self._failures.get(kind, 0) + 1

    def render(self, stats: SchedulerStats | None) -> bytes:
        """The text that Prometheus reads; None where the scheduler gave no counts."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families([*_scheduler_families(stats), *self._own_families()]))
        text = generate_latest(registry)
        assert isinstance(text, bytes)
        return text

    def _own_families(self) -> Iterable[Metric]:
        yield _gauge("http_requests_open", "HTTP requests that are being answered.", self.open_http_requests)
        counted = CounterMetricFamily(
            "palmette_http_requests", "HTTP requests answered.", labels=("method", "path", "status")
        )
        for labels, count in self._http.items():
            counted.add_metric(labels, count)
        yield counted
        failures = CounterMetricFamily("palmette_failures", "Nodes that failed, by error.", labels=("kind",))
        for kind, count in self._failures.items():
            failures.add_metric((kind,), count)
        yield failures
        yield _histogram("http_request_seconds", "Time to answer an HTTP request.", self._http_seconds, ("path",))
        for name, text, histogram in (
            ("time_to_first_token_seconds", "From a complete prompt to the first streamed text.", self.first_token),
            ("inter_token_seconds", "Between two pieces of a streamed answer.", self.inter_token),
            ("generation_seconds", "From a complete prompt to the end of its generation.", self.generation),
        ):
            yield _histogram(name, text, {"": histogram}, ())


class _Families(Collector):
    """Metrics that are there already."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _scheduler_families(stats: SchedulerStats | None) -> Iterable[Metric]:
    yield _gauge("up", "Whether the scheduler answers.", stats is not None)
    if stats is None:
        return
    yield _gauge("requests_running", "Requests in the running batch.", stats.running)
    yield _gauge("requests_waiting", "Requests that wait for room.", stats.waiting)
    yield _gauge("requests_compiling", "Requests whose grammar compiles.", stats.compiling)
    yield _gauge("kv_page_size", "Tokens a page of the KV pool.", stats.page_size)
    pages = GaugeMetricFamily("palmette_kv_pages", "Pages of the KV pool, by who has them.", labels=("state",))
    running = stats.total_pages - stats.free_pages - stats.evictable_pages - stats.protected_pages
    for state, count in (
        ("free", stats.free_pages),
        ("evictable", stats.evictable_pages),
        ("protected", stats.protected_pages),
        ("running", running),
    ):
        pages.add_metric((state,), count)
    yield pages
    yield _gauge("cache_hit_rate", "Prompt tokens found in the radix cache, of all.", stats.hit_rate)
    yield _gauge(
        "scheduler_overhead_fraction",
        "Working time in which the device computed nothing.",
        stats.scheduler_overhead_fraction,
    )
    for name, text, value in (
        ("steps", "Steps of the scheduler.", stats.steps),
        ("retractions", "Requests taken out of the running batch for want of pages.", stats.retractions),
        ("prompt_tokens", "Tokens of prompts.", stats.prompt_tokens),
        ("cached_prompt_tokens", "Tokens of prompts that were found in the radix cache.", stats.cached_tokens),
        ("output_tokens", "Tokens generated.", stats.output_tokens),
        ("forced_tokens", "Tokens generated that a grammar forced.", stats.forced_tokens),
        ("working_seconds", "Time with work to do.", stats.working_s),
        ("device_seconds", "Time in which the device computed.", stats.device_s),
    ):
        yield CounterMetricFamily(f"palmette_{name}", text, value=value)
    outcomes = CounterMetricFamily("palmette_requests", "Requests of the scheduler, by outcome.", labels=("outcome",))
    for outcome, count in (("finished", stats.finished), ("failed", stats.failed), ("aborted", stats.aborted)):
        outcomes.add_metric((outcome,), count)
    yield outcomes


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"palmette_{name}", text, value=value)


def _histogram(name: str, text: str, histograms: dict[str, Histogram], labels: Sequence[str]) -> Metric:
    family = HistogramMetricFamily(f"palmette_{name}", text, labels=labels)
    for label, histogram in histograms.items():
        buckets, total = histogram.buckets()
        family.add_metric((label,) if labels else (), buckets, total)
    return family
