"""`palmette bench serve`, on a real server and on a scripted one, and the parts that it is made of."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.fake_openai import Asked, FakeOpenAI, Refusal, Reply, says
from tests.native_server import ServedEngine

from palmette.bench.arrival import ClosedLoop, OpenLoop
from palmette.bench.measurement import Measured, Sample, Target, measure
from palmette.bench.report import percentile, report_of
from palmette.bench.workload import LENGTHS, Job, Lengths, PromptMaker, Turn, jobs_of, token_ids_of

SHORT = ("--requests", "6", "--prompt-tokens", "20", "--shared-tokens", "40", "--output-tokens", "5", "--warmup", "1")


# -- on a real server --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", ["unique", "fork", "fewshot", "agents", "json"])
def test_workloads(palmette: Run, roomy_server: ServedEngine, workload: str) -> None:
    """Every workload runs to its end, with counts that the server gave."""
    length = ("--output-tokens", "120", "--requests", "2") if workload == "json" else ()
    result = palmette(
        "bench", "serve", "--url", roomy_server.url, "--workload", workload, *SHORT, *length, "--json", "--flush-cache"
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["requests"], report["failed"], report["errors"]) == (2 if workload == "json" else 6, 0, {})
    assert report["output_tokens"] > 0
    if workload != "json":
        assert report["output_tokens"] == 30
    assert report["first_token_ms"]["p50"] <= report["end_to_end_ms"]["p50"]
    assert report["end_to_end_ms"]["p50"] <= report["end_to_end_ms"]["p95"] <= report["end_to_end_ms"]["p99"]
    if workload in ("fork", "fewshot", "agents"):
        assert report["cache_hit_rate"] > 0.3


def test_open_loop_and_chat(palmette: Run, roomy_server: ServedEngine) -> None:
    """Jobs that come at a rate, as chats, with the report as a table."""
    result = palmette("bench", "serve", "--url", f"{roomy_server.url}/v1", "--rate", "50", "--endpoint", "chat", *SHORT)
    assert result.exit_code == 0, result.output
    assert "6 answered, 0 failed" in result.stdout
    for name in ("first token", "between pieces", "per output token", "whole answer", "cache hit rate"):
        assert name in result.stdout


def test_a_server_of_its_own(palmette: Run, tiny_model_folder: Path) -> None:
    """Without --url a server is started, measured and ended."""
    result = palmette("bench", "serve", "-m", tiny_model_folder, *SHORT, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["failed"], report["run"]["url"].startswith("http://127.0.0.1:")) == (0, True)


# -- on a scripted server ----------------------------------------------------------------------------------------------


def test_errors_are_counted_by_kind(palmette: Run) -> None:
    """Failures of every kind are told apart, and do not end the run."""
    replies: list[Reply] = [
        says("a b c", pieces=3),
        Refusal(503),
        Refusal(429),
        Refusal(503),
        says("gone", breaks_after=0),
        says("ok"),
    ]
    with FakeOpenAI(replies) as server:
        result = palmette(
            "bench", "serve", "--url", server.url, "-m", "m", "--concurrency", "1", *SHORT, "--warmup", "0", "--json"
        )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["requests"], report["failed"]) == (6, 4)
    assert report["errors"] == {"HTTP 503": 2, "HTTP 429": 1, "not an OpenAI stream": 1}
    assert (report["prompt_tokens"], report["output_tokens"], report["cache_hit_rate"]) == (14, 6, 0)
    assert report["run"]["concurrency"] == 1
    assert server.posts[0].body["ignore_eos"] is True
    assert len(server.posts[0].body["prompt"]) == 60


def test_when_nothing_is_answered(palmette: Run) -> None:
    """The command fails, and says why."""
    with FakeOpenAI(lambda _: Refusal(500)) as server:
        result = palmette("bench", "serve", "--url", server.url, "-m", "m", *SHORT, "--warmup", "0")
    assert result.exit_code == 1
    assert "6 x HTTP 500" in result.stderr


def test_a_conversation_ends_with_its_first_failure() -> None:
    """What follows a failed turn is not asked, as there is nothing to go on with."""

    def script(asked: Asked) -> Reply:
        return Refusal(500) if asked.body["prompt"].endswith(" two") else says(" answer")

    job = Job((Turn(" one", 4), Turn(" two", 4), Turn(" three", 4)))
    with FakeOpenAI(script) as server:
        measured = asyncio.run(measure(Target(server.url.removesuffix("/v1"), "m"), [job], ClosedLoop(1)))
    assert [asked.body["prompt"] for asked in server.posts] == [" one", " one answer two"]
    assert [sample.error for sample in measured.samples] == ["", "HTTP 500"]


@pytest.mark.parametrize(
    ("words", "says_"),
    [
        (("--rate", "1", "--concurrency", "2"), "do not go together"),
        (("--rate", "0"), "--rate must be more than 0"),
        (("--concurrency", "0"), "--concurrency must be at least 1"),
        (("--url", "localhost:80"), "--url must be like"),
        (("--url", "http://127.0.0.1:9"), "cannot be reached"),
        (("--requests", "0"), "--requests"),
        (("--workload", "none"), "--workload"),
    ],
)
def test_wrong_words(palmette: Run, words: tuple[str, ...], says_: str) -> None:
    """Each is refused before anything is started."""
    result = palmette("bench", "serve", *(() if "--url" in words else ("--url", "http://127.0.0.1:9")), *words)
    assert result.exit_code == 2
    assert says_ in result.stderr


def test_keys(palmette: Run) -> None:
    """The key is sent; a server that refuses it is named."""
    with FakeOpenAI([says("x")]) as server:
        result = palmette(
            "bench", "serve", "--url", server.url, "-m", "m", "--api-key", "k", "--requests", "1", "--warmup", "0"
        )
    assert result.exit_code == 0, result.output
    assert server.posts[0].headers["authorization"] == "Bearer k"


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_shapes_of_workloads() -> None:
    """What prompts share, how long they are, and how many there are; the same seed draws the same."""

    def jobs(name: str, requests: int) -> list[Job]:
        maker = PromptMaker(token_ids_of(50_000), random.Random(1))
        return jobs_of(name, LENGTHS[name], requests, maker)  # type: ignore[arg-type, index]  # names of workloads

    assert jobs("unique", 3) == jobs("unique", 3)
    unique = jobs("unique", 40)
    assert {len(job.turns[0].adds) for job in unique} == {1024}
    assert len({job.turns[0].adds[0] for job in unique}) > 30
    forks = jobs("fork", 40)
    assert sorted(map(len, _by_prefix(forks, 2048))) == [8, 16, 16]
    assert [len(group) for group in _by_prefix(jobs("fewshot", 5), 1536)] == [5]
    agents = jobs("agents", 10)
    assert [len(job.turns) for job in agents] == [4, 4, 2]
    assert [len(turn.adds) for turn in agents[0].turns] == [1280, 256, 256, 256]
    assert all(turn.json_schema for job in jobs("json", 2) for turn in job.turns)


def _by_prefix(jobs: list[Job], length: int) -> list[list[Job]]:
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.turns[0].adds[:length], []).append(job)
    return list(groups.values())


def test_texts_as_prompts() -> None:
    """Without ids prompts are words."""
    (job,) = jobs_of("unique", Lengths(0, 5, 1), 1, PromptMaker(None, random.Random(1)))
    assert isinstance(job.turns[0].adds, str)
    assert len(job.turns[0].adds.split()) == 5


@pytest.mark.parametrize("size", [260, 1500, 32_000, 150_000])
def test_token_ids_exist(size: int) -> None:
    """Ids are of the vocabulary, and there are many of them."""
    ids = token_ids_of(size)
    assert 0 < ids[0] < ids[-1] < size
    assert len(ids) >= size // 4 or len(ids) > 10_000


def test_poisson_arrivals() -> None:
    """Gaps have the mean of the rate and vary as a Poisson process's do; the same seed draws the same."""
    times = OpenLoop(100.0, seed=3).times(20_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert times == OpenLoop(100.0, seed=3).times(20_000)
    assert mean == pytest.approx(0.01, rel=0.05)
    assert variance == pytest.approx(0.0001, rel=0.1)


def test_open_loop_does_not_wait_for_answers() -> None:
    """Jobs come while others are under way, and what came late is measured from when it should have come."""
    came: list[float] = []
    open_jobs = most = 0

    async def run(item: int, at: float) -> None:
        nonlocal open_jobs, most
        came.append(at)
        open_jobs += 1
        most = max(most, open_jobs)
        await asyncio.sleep(0.05)
        open_jobs -= 1

    start = time.perf_counter()
    asyncio.run(OpenLoop(1000.0).drive(range(20), run))
    assert most > 5
    due = [at - came[0] for at in came]
    assert due == pytest.approx(OpenLoop(1000.0).times(20))
    assert came[0] >= start


def test_closed_loop_keeps_as_many_under_way() -> None:
    """Never more than were asked for, and all are done."""
    open_jobs = most = done = 0

    async def run(item: int, at: float) -> None:
        nonlocal open_jobs, most, done
        open_jobs += 1
        most = max(most, open_jobs)
        await asyncio.sleep(0)
        open_jobs -= 1
        done += 1

    asyncio.run(ClosedLoop(4).drive(range(30), run))
    assert (most, done) == (4, 30)


def test_a_report_by_hand() -> None:
    """Times and rates of two answers and a failure, worked out on paper."""
    samples = [
        Sample(0.0, [0.1, 0.2, 0.2, 0.4], 0.5, prompt_tokens=10, cached_tokens=5, output_tokens=4),
        Sample(1.0, [1.3], 1.4, prompt_tokens=10, cached_tokens=0, output_tokens=1),
        Sample(1.0, [], 1.1, error="timeout"),
    ]
    report = report_of(Measured(samples, elapsed_s=2.0, client_cpu_s=0.5))
    assert (report.requests, report.failed, report.errors) == (3, 1, {"timeout": 1})
    assert (report.requests_per_s, report.output_tokens_per_s, report.cache_hit_rate) == (1.0, 2.5, 0.25)
    assert report.first_token_ms is not None
    assert report.first_token_ms.p50 == pytest.approx(200)
    assert report.inter_token_ms is not None
    assert (report.inter_token_ms.p50, report.inter_token_ms.max) == pytest.approx((150, 200))
    assert report.per_token_ms is not None
    assert report.per_token_ms.mean == pytest.approx(100)
    assert report.end_to_end_ms is not None
    assert report.end_to_end_ms.max == pytest.approx(500)
    assert report.client_cpu == 0.25
    empty = report_of(Measured([], 0.0, 0.0))
    assert (empty.cache_hit_rate, empty.first_token_ms, empty.requests_per_s) == (None, None, 0)


@pytest.mark.parametrize(("rank", "value"), [(0, 1.0), (50, 3.0), (95, 4.8), (100, 5.0)])
def test_percentiles(rank: float, value: float) -> None:
    """Between two values where the rank falls there."""
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], rank) == pytest.approx(value)
