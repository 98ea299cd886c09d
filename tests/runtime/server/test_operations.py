"""How a server is watched and operated, on a real one and on services that fail."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.native_server import ServedEngine, served

from palmette.runtime.engine import Engine
from palmette.runtime.errors import EngineError
from palmette.runtime.measured_service import MeasuredService
from palmette.runtime.messages import SchedulerStats, SessionOptions
from palmette.runtime.metrics import Histogram, Metrics
from palmette.runtime.program import Completion, Delta, Event, Failed, Generated, ModelInfo
from palmette.runtime.server import operations
from palmette.runtime.server.app import create_app
from palmette.runtime.server_settings import ServerSettings


@pytest.fixture
def client(tiny_server: ServedEngine) -> Iterator[httpx.Client]:
    """A client of the server around the tiny engine."""
    with httpx.Client(base_url=tiny_server.url, timeout=60) as client:
        yield client


def numbers(text: str) -> dict[str, float]:
    """Samples by name and labels, as Prometheus reads them."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


class BrokenService:
    """A service whose engine hangs or has died; `events` is what an open program's sink is."""

    model_info = ModelInfo(name="broken", context_length=8, vocab_size=8)
    tokenizer: Any = None
    open_sessions = 0

    def __init__(self, *, hangs: bool) -> None:
        self._hangs = hangs
        self.closed = 0
        self.events: Callable[[Event], None] = lambda event: None

    def open(self, events: Callable[[Event], None], options: SessionOptions = SessionOptions()) -> BrokenService:  # noqa: B008  # frozen
        self._fail()
        self.events = events
        return self

    def extend(self, nodes: object) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1

    async def stats(self) -> SchedulerStats:
        return await self._silence()

    async def flush_cache(self) -> int:
        await self._silence()
        return 0

    async def cache_tree(self, limit: int) -> Any:
        await self._silence()

    def _fail(self) -> None:
        if not self._hangs:
            raise EngineError("the scheduler has died")

    async def _silence(self) -> SchedulerStats:
        self._fail()
        await asyncio.sleep(3600)
        return SchedulerStats()


def test_a_well_server_says_so(client: httpx.Client) -> None:
    """Both health checks answer 200, and many at once are one generation."""
    assert client.get("/health").json() == {"status": "ok"}
    before = numbers(client.get("/metrics").text)["palmette_generation_seconds_count"]
    answer = client.get("/health_generate?timeout_s=60").json()
    assert (answer["status"], answer["elapsed_s"] > 0) == ("ok", True)
    assert numbers(client.get("/metrics").text)["palmette_generation_seconds_count"] == before + 1
    assert client.get("/health_generate?timeout_s=0").status_code == 400


@pytest.mark.parametrize("hangs", [True, False])
def test_an_ill_engine_is_told(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that hangs or has died gives 503 on every question, and metrics that say it is not up."""
    monkeypatch.setattr(operations, "STATS_TIMEOUT_S", 0.05)
    service = BrokenService(hangs=hangs)

    async def ask() -> list[httpx.Response]:
        app = create_app(service, ServerSettings())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            gets = [await client.get(path) for path in ("/health", "/health_generate?timeout_s=0.05", "/server_info")]
            return [*gets, await client.post("/flush_cache"), await client.get("/metrics")]

    *answers, metrics = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [503] * 4
    assert all(answer.json()["error"]["code"] == "engine_error" for answer in answers)
    assert numbers(metrics.text)["palmette_up"] == 0


def test_health_checks_share_one_probe() -> None:
    """However many ask while one token is awaited, one program is open; it is closed when it ends, well or not."""
    service = BrokenService(hangs=True)

    async def ask(end: Callable[[], Awaitable[None]]) -> list[int]:
        app = create_app(service, ServerSettings())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            asking = [asyncio.create_task(client.get("/health_generate")) for _ in range(5)]
            await end()
            return [(await answer).status_code for answer in asking]

    async def fail() -> None:
        for _ in range(1000):  # rounds of the loop, not time: all five have come to the probe
            await asyncio.sleep(0)
        service.events(Failed(1, "EngineError", "no pages"))

    assert asyncio.run(ask(fail)) == [503] * 5
    assert service.closed == 1


def test_server_info_tells_no_secret(tiny_engine: Engine) -> None:
    """Model, version, counts and public settings; neither the key nor paths of certificates."""
    settings = ServerSettings(api_key="open-sesame", model_name="shown")
    with served(tiny_engine, settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.get("/health").status_code == 200
        for path in ("/server_info", "/metrics", "/health_generate"):
            assert client.get(path).status_code == 401
        answer = client.get("/server_info", headers={"Authorization": "Bearer open-sesame"})
    info = answer.json()
    assert "open-sesame" not in answer.text
    assert "ssl" not in answer.text
    assert (info["model_name"], info["model"]["context_length"]) == ("shown", tiny_engine.model_info.context_length)
    assert info["stats"]["total_pages"] == tiny_engine.stats().total_pages
    assert {"hit_rate", "scheduler_overhead_fraction"} <= set(info["stats"])


def test_server_info_counts_what_is_open(tiny_engine: Engine) -> None:
    """A request that is being answered, a program, a channel and its program; and nothing once they are gone."""
    others = tiny_engine.open_sessions  # of tests before this one
    nothing = {"requests": 0, "programs": 0, "channels": 0, "sessions": others}
    with served(tiny_engine) as server, httpx.Client(base_url=server.url, timeout=60) as client:

        def what_is_open() -> Any:
            return client.get("/server_info").json()["open"]

        assert what_is_open() == nothing
        program = client.post("/programs", json={}).json()["id"]
        channel = client.post("/channels").json()["id"]
        client.put(f"/channels/{channel}/messages/1", json=[{"type": "open", "program": 1}])
        body = {"text": "a", "stream": True, "sampling_params": {"max_tokens": 100_000, "ignore_eos": True}}
        with client.stream("POST", "/generate", json=body):
            assert what_is_open() == {"requests": 1, "programs": 2, "channels": 1, "sessions": others + 3}
        client.delete(f"/programs/{program}")
        client.delete(f"/channels/{channel}")
        deadline = time.monotonic() + 60
        while what_is_open() != nothing:
            assert time.monotonic() < deadline


def test_metrics_follow_what_happens(client: httpx.Client) -> None:
    """A streamed request and a bad one move the counts that are about them, and no others by more."""
    before = numbers(client.get("/metrics").text)
    body = {"text": "Once", "stream": True, "sampling_params": {"max_tokens": 5, "ignore_eos": True}}
    client.post("/generate", json=body)
    client.post("/generate", json={"text": "a", "json_schema": {"type": "nothing"}})
    client.post("/generate", json={"text": 7})
    client.get("/no/such/thing")
    after = numbers(client.get("/metrics").text)
    moved = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
    assert moved["palmette_output_tokens_total"] == 5
    assert moved["palmette_time_to_first_token_seconds_count"] == 1
    assert moved["palmette_generation_seconds_count"] == 1
    assert moved["palmette_inter_token_seconds_count"] <= 4
    assert moved["palmette_http_requests_total{method=POST,path=/generate,status=200}"] == 1
    assert moved["palmette_http_requests_total{method=POST,path=/generate,status=400}"] == 2
    assert moved["palmette_http_requests_total{method=(none),path=(none),status=404}"] == 1
    assert after["palmette_http_requests_open"] == 1
    states = ("free", "evictable", "protected", "running")
    assert sum(after[f"palmette_kv_pages{{state={state}}}"] for state in states) == 8000


def test_every_count_of_the_scheduler_is_there() -> None:
    """The text has each count of SchedulerStats under its own name, and the ratios."""
    stats = SchedulerStats(
        steps=1, retractions=2, compiling=3, waiting=4, running=5, free_pages=60, evictable_pages=7, protected_pages=8,
        total_pages=90, page_size=10, prompt_tokens=100, cached_tokens=25, output_tokens=13, forced_tokens=14,
        finished=15, failed=16, aborted=17, working_s=20.0, device_s=19.0,
    )  # fmt: skip
    found = numbers(Metrics().render(stats).decode())
    assert found["palmette_kv_pages{state=running}"] == 15
    assert (found["palmette_cache_hit_rate"], found["palmette_up"]) == (0.25, 1)
    assert found["palmette_scheduler_overhead_fraction"] == pytest.approx(0.05)
    for name, value in {"steps": 1, "retractions": 2, "cached_prompt_tokens": 25, "device_seconds": 19}.items():
        assert found[f"palmette_{name}_total"] == value
    assert [found[f"palmette_requests_{name}"] for name in ("compiling", "waiting", "running")] == [3, 4, 5]
    outcomes = ("finished", "failed", "aborted")
    assert [found[f"palmette_requests_total{{outcome={name}}}"] for name in outcomes] == [15, 16, 17]


def test_histograms_cumulate() -> None:
    """Every observation is in all buckets from its own on, and bounds belong to the bucket below."""
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 3.0, 1e9):
        histogram.observe(seconds)
    buckets, total = histogram.buckets()
    assert dict(buckets)["0.001"] == 2
    assert (dict(buckets)["0.0025"], dict(buckets)["2.5"], dict(buckets)["5.0"]) == (3, 3, 4)
    assert buckets[-1] == ("+Inf", 5)
    assert total == pytest.approx(1e9 + 3.0021)


def test_latencies_are_taken_from_the_events() -> None:
    """First token, gaps and ends are measured by the clock, of each answer by itself; events pass unchanged."""
    times = iter([10.0, 10.5, 10.6, 12.0])
    metrics, service, seen = Metrics(), BrokenService(hangs=True), list[Event]()
    MeasuredService(service, metrics, now=lambda: next(times)).open(seen.append)
    answer = Completion(
        text="ab", token_ids=(1, 2), finish_reason="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=2
    )
    events: list[Event] = [Delta(1, "a"), Delta(1, "b"), Delta(1, "c", 1), Generated(1, (answer, answer), (), 2.5)]
    for event in events:
        service.events(event)
    service.events(Failed(2, "GrammarError", "no"))
    assert seen[:4] == events
    assert (metrics.first_token.buckets()[1], metrics.inter_token.buckets()[1]) == (0.5, 0.5)
    assert metrics.generation.buckets()[1] == 2.5
    assert numbers(metrics.render(None).decode())["palmette_failures_total{kind=GrammarError}"] == 1


def test_flushing_drops_what_nobody_uses(client: httpx.Client, tiny_engine: Engine) -> None:
    """The number of tokens dropped comes back, and the cache is empty."""
    client.post("/generate", json={"text": "The castle", "sampling_params": {"max_tokens": 2}})
    assert client.post("/flush_cache").json()["tokens"] > 0
    assert tiny_engine.stats().evictable_pages == 0


@pytest.mark.parametrize("body", ["", "{}", '{"rid": 7}', '{"rid": "x", "all": true}', "[]"])
def test_bad_aborts_are_refused(client: httpx.Client, body: str) -> None:
    """400 for what names no request."""
    answer = client.post("/abort", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, bool(answer.json()["error"]["message"])) == (400, True)


def test_the_version_is_the_package_s(client: httpx.Client) -> None:
    """`version` is that of the installed package."""
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", client.get("/server_info").json()["version"])
