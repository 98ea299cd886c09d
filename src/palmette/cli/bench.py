"""`palmette bench serve`: how a server answers under load."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from .engine import fetch_model
from .errors import DebugOption, RunError, UsageError, note, reports_errors

if TYPE_CHECKING:
    import httpx

    from palmette.bench.arrival import Arrival
    from palmette.bench.measurement import Target
    from palmette.bench.report import Report, Spread
    from palmette.bench.workload import Job, PromptMaker

bench = typer.Typer(help="Measure a server.", no_args_is_help=True)

_DEFAULT_VOCABULARY = 30_000
_LOOK_S = 10.0


@dataclass(frozen=True, slots=True)
class _Server:
    """Where to ask, and what the server says of itself."""

    url: str
    model: str
    vocab_size: int
    headers: dict[str, str]


@bench.callback()
def _root() -> None:
    """Measure a server."""


@bench.command()
@reports_errors
def serve(
    url: Annotated[
        str | None,
        typer.Option(help="Any OpenAI-compatible server, without the /v1.", show_default="one is started for this"),
    ] = None,
    workload: Annotated[
        Literal["unique", "fork", "fewshot", "agents", "json"],
        typer.Option(help="What prompts share, or json: answers held to a schema."),
    ] = "unique",
    rate: Annotated[float | None, typer.Option(help="Open loop: so many jobs a second, at random times.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: so many jobs at once.", show_default="16, without --rate")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests in all.", min=1)] = 200,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Of each prompt's own part.", min=1, show_default="by workload")
    ] = None,
    shared_tokens: Annotated[
        int | None, typer.Option(help="Of the part that prompts share.", min=0, show_default="by workload")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(help="Of each answer.", min=1, show_default="by workload")
    ] = None,
    endpoint: Annotated[
        Literal["completions", "chat"], typer.Option(help="Completions of token ids, or chats of random words.")
    ] = "completions",
    text: Annotated[bool, typer.Option("--text", help="Prompts of random words instead of token ids.")] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos/--no-ignore-eos", help="Ask for answers of full length (an extension).")
    ] = True,
    flush_cache: Annotated[bool, typer.Option("--flush-cache", help="Empty a Palmette server's cache before.")] = False,
    warmup: Annotated[int, typer.Option(help="Requests before, that do not count.", min=0)] = 2,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals: the same seed asks the same.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds between two pieces of an answer.", min=0.001)] = 600.0,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The server's name for it; without --url, the model to start.",
            show_default="its first, or the built-in one",
        ),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's key.", envvar="OPENAI_API_KEY")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    debug: DebugOption = False,
) -> None:
    """Ask a server as many users would, and tell how long its answers took."""
    from palmette.bench.measurement import Target
    from palmette.bench.workload import LENGTHS, Lengths, jobs_of

    arrival = _arrival(rate, concurrency, seed)
    given = {"own": prompt_tokens, "shared": shared_tokens, "output": output_tokens}
    lengths = dataclasses.replace(
        LENGTHS[workload], **{name: value for name, value in given.items() if value is not None}
    )
    with _server(url, model, api_key) as server:
        target = Target(server.url, server.model, server.headers, endpoint, ignore_eos, timeout)
        as_text = text or endpoint == "chat" or workload == "agents"  # the ids of an answer are not told
        maker = _maker(server, as_text, seed)
        run = _Run(
            target,
            jobs=jobs_of(workload, lengths, requests, maker),
            warm_up=jobs_of("unique", Lengths(0, 32, 4), warmup, maker),
            arrival=arrival,
            flushes=flush_cache,
        )
        report = asyncio.run(_measured(run))
    named = {"url": server.url, "model": server.model, "workload": workload, "seed": seed}
    _print(report, as_json, {**named, **dataclasses.asdict(arrival), **dataclasses.asdict(lengths)})
    if report.failed == report.requests:
        raise RunError(f"none of the {report.requests} requests was answered: {_errors(report)}")


def _arrival(rate: float | None, concurrency: int | None, seed: int) -> Arrival:
    from palmette.bench.arrival import ClosedLoop, OpenLoop

    if rate is not None and concurrency is not None:
        raise UsageError(
            "--rate and --concurrency do not go together",
            hint="--rate asks whatever the server does; --concurrency asks when another answer has ended",
        )
    if rate is not None:
        if not 0 < rate < float("inf"):
            raise UsageError(f"--rate must be more than 0 jobs a second, not {rate:g}")
        return OpenLoop(rate, seed)
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"--concurrency must be at least 1, not {concurrency}")
    return ClosedLoop(16 if concurrency is None else concurrency)


def _maker(server: _Server, as_text: bool, seed: int) -> PromptMaker:
    from palmette.bench.workload import PromptMaker, token_ids_of

    drawn = random.Random(seed)
    return PromptMaker(None if as_text else token_ids_of(server.vocab_size), drawn)


# -- the server --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _server(url: str | None, model: str | None, api_key: str | None) -> Iterator[_Server]:
    """The server to measure: the one that was named, or one that is started and ends with the run."""
    if url is not None:
        yield _looked_at(_root_of(url), model, api_key)
        return
    import palmette.runtime

    fetch_model(model, None)
    with palmette.runtime.launch(model) as runtime:
        yield _looked_at(runtime.url, None, api_key)


def _root_of(url: str) -> str:
    """The URL without the ``/v1`` that clients are given."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url must be like http://127.0.0.1:30000, not {url!r}")
    return url.rstrip("/").removesuffix("/v1")


def _looked_at(url: str, model: str | None, api_key: str | None) -> _Server:
    """The server at a URL: its model where none was named, and its vocabulary where it is Palmette's."""
    import httpx

    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=_LOOK_S) as client:
        try:
            if model is None:
                model = _first_model(client.get("/v1/models"), url)
            told = client.get("/server_info")
        except httpx.HTTPError as error:
            raise UsageError(f"{url} cannot be reached: {error}", hint="`palmette serve` starts a server") from error
    return _Server(url, model, _vocabulary(told), headers)


def _first_model(response: httpx.Response, url: str) -> str:
    if response.status_code in (401, 403):
        raise UsageError(f"{url} refuses the API key", hint="--api-key names it, or OPENAI_API_KEY")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{url} does not list its models ({response.status_code})", hint="--model names one"
        ) from error


def _vocabulary(response: httpx.Response) -> int:
    try:
        return int(response.json()["model"]["vocab_size"])
    except (ValueError, LookupError, TypeError):  # another make of server, or none of its business
        return _DEFAULT_VOCABULARY


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    target: Target
    jobs: Sequence[Job]
    warm_up: Sequence[Job]
    arrival: Arrival
    flushes: bool


async def _measured(run: _Run) -> Report:
    import httpx

    from palmette.bench.arrival import ClosedLoop
    from palmette.bench.measurement import measure
    from palmette.bench.report import report_of

    if run.warm_up:
        await measure(run.target, run.warm_up, ClosedLoop(1))
    if run.flushes:
        async with httpx.AsyncClient(base_url=run.target.url, headers=dict(run.target.headers)) as client:
            answer = await client.post("/flush_cache", timeout=run.target.timeout_s)
        if answer.status_code != 200:
            raise UsageError(
                f"{run.target.url} has no cache to flush ({answer.status_code})", hint="leave --flush-cache out"
            )
    return report_of(await measure(run.target, run.jobs, run.arrival))


# -- what is printed ---------------------------------------------------------------------------------------------------


def _print(report: Report, as_json: bool, run: dict[str, Any]) -> None:
    from palmette.bench.report import BUSY_CLIENT

    if as_json:
        typer.echo(json.dumps({"run": run, **dataclasses.asdict(report)}))
        return
    for name, value in _facts(report):
        typer.echo(f"{name:<22} {value}")
    typer.echo(f"\n{'milliseconds':<22} {'mean':>9} {'p50':>9} {'p95':>9} {'p99':>9} {'max':>9}")
    for name, spread in _spreads(report):
        if spread is not None:
            numbers = " ".join(f"{value:>9.1f}" for value in dataclasses.astuple(spread))
            typer.echo(f"{name:<22} {numbers}")
    if report.client_cpu > BUSY_CLIENT:
        note(
            f"the client itself used {report.client_cpu:.0%} of a core: it may be what was measured; "
            "run several clients, or ask for longer answers"
        )


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "requests", f"{report.requests - report.failed} answered, {report.failed} failed"
    if report.errors:
        yield "errors", _errors(report)
    yield "time", f"{report.elapsed_s:.2f} s"
    yield "requests a second", f"{report.requests_per_s:.2f}"
    yield "output tokens", f"{report.output_tokens}, {report.output_tokens_per_s:.1f} a second"
    yield "prompt tokens", f"{report.prompt_tokens}, {report.prompt_tokens_per_s:.1f} a second"
    if report.cache_hit_rate is not None:
        yield "cache hit rate", f"{report.cache_hit_rate:.1%} of prompt tokens"
    yield "client's CPU", f"{report.client_cpu:.1%} of a core"


def _spreads(report: Report) -> Iterator[tuple[str, Spread | None]]:
    yield "first token", report.first_token_ms
    yield "between pieces", report.inter_token_ms
    yield "per output token", report.per_token_ms
    yield "whole answer", report.end_to_end_ms


def _errors(report: Report) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in report.errors.items())
