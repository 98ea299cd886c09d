"""Asks a server and measures its answers, from one thread with as little work of its own as can be."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import msgspec

from .arrival import Arrival
from .workload import Job, Prompt, Turn, joined

Endpoint = Literal["completions", "chat"]


@dataclass(frozen=True, slots=True)
class Target:
    """The server to ask.

    Attributes:
        url: without the ``/v1``.
        model: what its requests name.
        headers: of every request.
        endpoint: completions, or chat completions, whose prompts are text.
        ignore_eos: ask for exactly as many tokens as are wanted; an extension that most engines know.
        timeout_s: between two pieces of an answer.
    """

    url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    endpoint: Endpoint = "completions"
    ignore_eos: bool = True
    timeout_s: float = 600.0


@dataclass(slots=True)
class Sample:
    """One request as it was seen from here. Times are those of `time.perf_counter`, in seconds.

    Attributes:
        came: when the user would have asked: in an open loop, what the client is late by is part of the wait.
        arrivals: when each piece of the answer came that holds text.
        ended: when the answer had ended.
        error: the kind of failure, such as "HTTP 503"; empty where there was none.
        text: of the answer.
    """

    came: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    text: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    """A whole run: its requests, how long it took, and the client's own CPU time in that."""

    samples: Sequence[Sample]
    elapsed_s: float
    client_cpu_s: float


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Event)


async def measure(target: Target, jobs: Sequence[Job], arrival: Arrival) -> Measured:
    """Run jobs against a server. Failures are counted in their samples; nothing is tried again."""
    samples: list[Sample] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=1024)
    timeout = httpx.Timeout(target.timeout_s, pool=None)
    async with httpx.AsyncClient(
        base_url=target.url, headers=dict(target.headers), limits=limits, timeout=timeout
    ) as client:

        async def run(job: Job, came: float) -> None:
            prompt: Prompt = ()
            for turn in job.turns:
                prompt = joined(prompt, turn.adds)
                sample = Sample(came)
                samples.append(sample)
                await _ask(client, target, prompt, turn, sample)
                if sample.error:
                    return  # the turns after it have nothing to go on with
                prompt = joined(prompt, "".join(sample.text)) if isinstance(prompt, str) else prompt
                came = time.perf_counter()

        started, cpu = time.perf_counter(), time.process_time()
        await arrival.drive(jobs, run)
        return Measured(samples, time.perf_counter() - started, time.process_time() - cpu)


def body_of(target: Target, prompt: Prompt, turn: Turn) -> dict[str, Any]:
    """The request for a turn."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": turn.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if turn.json_schema is None:
        return {**body, "ignore_eos": True} if target.ignore_eos else body
    if target.endpoint == "chat":
        named = {"name": "answer", "schema": turn.json_schema, "strict": True}
        return {**body, "response_format": {"type": "json_schema", "json_schema": named}}
    return {**body, "json_schema": turn.json_schema}


async def _ask(client: httpx.AsyncClient, target: Target, prompt: Prompt, turn: Turn, sample: Sample) -> None:
    """Ask once, and fill in the sample."""
    path = "/v1/chat/completions" if target.endpoint == "chat" else "/v1/completions"
    try:
        content = msgspec.json.encode(body_of(target, prompt, turn))
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        async with client.stream("POST", path, content=content, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                sample.error = f"HTTP {response.status_code}"
            else:
                await _read(response, sample)
    except httpx.TimeoutException:
        sample.error = "timeout"
    except httpx.ConnectError:
        sample.error = "cannot connect"
    except httpx.TransportError:
        sample.error = "connection lost"
    except msgspec.DecodeError:
        sample.error = "not an OpenAI stream"
    sample.ended = time.perf_counter()


async def _read(response: httpx.Response, sample: Sample) -> None:
    """Take the events of a stream, to its end, so that the connection can be used again.

    Events that come in one read have one time.
    """
    rest = b""
    done = False
    async for data in response.aiter_raw():
        now = time.perf_counter()
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                done = True
            elif event.startswith(b"data: "):
                _take(_DECODER.decode(event[6:]), sample, now)
    if not done and not sample.error:
        sample.error = "stream broken off"


def _take(event: _Event, sample: Sample, now: float) -> None:
    if event.error:
        sample.error = "error in the stream"
    for choice in event.choices:
        text = choice.text if choice.delta is None else choice.delta.content
        if text:
            sample.arrivals.append(now)
            sample.text.append(text)
    usage = event.usage
    if usage is not None:
        sample.prompt_tokens = usage.prompt_tokens
        sample.output_tokens = usage.completion_tokens
        details = usage.prompt_tokens_details
        sample.cached_tokens = 0 if details is None else details.cached_tokens or 0
