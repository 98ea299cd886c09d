"""The connection to an OpenAI service: requests with retries, a bound on how many are open, and what it can do."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import msgspec

from palmette.runtime.errors import EngineError
from palmette.runtime.program import ModelInfo

from .openai_errors import is_refusal
from .openai_replies import Endpoint, Reply, reply_of
from .openai_usage import METER

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

RETRY_S = 0.5
"""Before a stream that broke is asked for again; twice as long before each further time, but no more than 8 seconds."""

_MOST_RETRY_S = 8.0
_PROBE_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Abilities:
    """What a service was found to take; None is not known yet."""

    completions: bool | None = None
    scores: bool | None = None


class Service:
    """Made and used on one event loop.

    Attributes:
        url: the service's, for messages.
        timeout_s: of a request, or between two events of a stream.
        max_retries: what the client tries again.
        abilities: what it was found to take.
    """

    def __init__(self, client: AsyncOpenAI, *, timeout_s: float, max_open_requests: int) -> None:
        self.url = str(client.base_url).rstrip("/")
        self.timeout_s = timeout_s
        self.max_retries = client.max_retries
        self.abilities = Abilities()
        self._client = client
        self._turns = asyncio.Semaphore(max_open_requests)

    async def ask(self, endpoint: Endpoint, body: dict[str, object]) -> Reply:
        """One whole answer.

        Raises:
            openai.OpenAIError: there is none, after as many tries as the client makes.
            ServiceError: it has a form that is not OpenAI's.
        """
        async with self._turns:
            value = await self._client.post(endpoint, cast_to=object, body=body)
        METER.get().add(requests=1)
        return _counted(reply_of(value, self.url))

    async def stream(self, endpoint: Endpoint, body: dict[str, object]) -> AsyncIterator[Reply]:
        """The events of one answer, as they come; errors as for `ask`."""
        from openai import AsyncStream

        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._turns:
            events = await self._client.post(
                endpoint, cast_to=object, body=streamed, stream=True, stream_cls=AsyncStream[object]
            )
            METER.get().add(requests=1)
            async with events, aclosing(events.__aiter__()) as values:  # type: ignore[type-var]  # a generator, said to be an iterator
                async for value in values:
                    yield _counted(reply_of(value, self.url))

    async def wait_before(self, attempt: int) -> None:
        """Wait before a stream that broke is asked for again, and count that; before the first time, nothing."""
        if attempt:
            METER.get().add(retries=1)
            longest_s = min(_MOST_RETRY_S, RETRY_S * 2 ** (attempt - 1))
            await asyncio.sleep(longest_s * random.uniform(0.75, 1.0))  # not all at once, where many broke together

    async def palmette_info(self) -> ModelInfo | None:
        """What a Palmette server says of its model; None where the service is another, or cannot be reached now."""
        import openai

        root = self.url.removesuffix("/v1")
        try:
            client = self._client.with_options(max_retries=0, timeout=_PROBE_TIMEOUT_S)
            value = await client.get(f"{root}/server_info", cast_to=object)
        except openai.OpenAIError:
            return None
        if not isinstance(value, dict) or "protocol" not in value:
            return None
        try:
            return msgspec.convert(value.get("model"), ModelInfo)
        except msgspec.ValidationError:
            return None

    async def close(self) -> None:
        await self._client.close()


def _counted(reply: Reply) -> Reply:
    counts = reply.counts
    if counts is not None:
        METER.get().add(
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            completion_tokens=counts.completion_tokens,
        )
    return reply


async def _count_retry(request: httpx.Request) -> None:
    """Count a request that the client sends once more, as it says in a header."""
    meter = METER.get(None)
    if meter is not None and request.headers.get("x-stainless-retry-count", "0") != "0":
        meter.add(retries=1)


def new_client(base_url: str | None, api_key: str | None, max_retries: int, timeout_s: float) -> AsyncOpenAI:
    """The official client, which tries again with growing waits, and as a service's Retry-After says.

    Raises:
        EngineError: it is not installed.
        ValueError: there is no API key, and the service is OpenAI's.
    """
    try:
        import openai
    except ImportError as error:
        raise EngineError(
            "OpenAIBackend needs the openai client, which is not installed: pip install 'palmette[openai]'"
        ) from error
    key = api_key or os.environ.get("OPENAI_API_KEY")
    if not key and base_url is None and not os.environ.get("OPENAI_BASE_URL"):
        raise ValueError("OpenAI's service needs an API key: pass api_key=..., or set OPENAI_API_KEY")
    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [_count_retry]})
    return openai.AsyncOpenAI(
        base_url=base_url, api_key=key or "none", max_retries=max_retries, timeout=timeout_s, http_client=http
    )


def token_limit_name(url: str) -> Literal["max_tokens", "max_completion_tokens"]:
    """OpenAI's own service refuses the older name for newer models; other services may know that one only."""
    host = urlsplit(url).hostname or ""
    is_openai = host == "openai.com" or host.endswith((".openai.com", ".openai.azure.com"))
    return "max_completion_tokens" if is_openai else "max_tokens"


def lacks(error: Exception) -> bool:
    """Whether a service said that it has no such path, or that the model cannot be asked this way."""
    return is_refusal(error, 404, 405, 501)
