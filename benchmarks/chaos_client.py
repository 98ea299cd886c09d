"""A client of the chaos run: what every kind of request needs, and the book in which it is written how they ended."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

LIMIT_S = 300.0
"""A request that has no answer for so long hangs."""

PREFIXES = tuple(
    f"You are {who}. Answer shortly and truthfully, and say so when you do not know. "
    for who in ("a gardener", "a clerk of the city", "a teacher of arithmetic", "an old sailor")
)
SALTS = ("", "", "tenant-1", "tenant-2")


class WrongAnswerError(Exception):
    """A law of the run is broken; the message says by what answer."""


@dataclass(frozen=True)
class Scale:
    """What a model makes possible.

    Attributes:
        words: tokens of a short answer.
        document: tokens in which a small JSON document is complete.
        endless: tokens of an answer that nobody waits for.
        context_length: most tokens of prompt and answer.
    """

    words: int
    document: int
    endless: int
    context_length: int


FAKE = Scale(words=24, document=260, endless=4000, context_length=8192)
"""A token is a byte, and steps cost nothing."""
SMALL = Scale(words=8, document=120, endless=400, context_length=2048)


@dataclass
class Visit:
    """One request, or a few that belong together, by one client."""

    http: httpx.AsyncClient
    rng: random.Random
    scale: Scale

    def prompt(self) -> str:
        """A beginning that many share, and an end of its own."""
        return f"{self.rng.choice(PREFIXES)}Question {self.rng.randrange(10_000)}: "

    def salt(self) -> str:
        return self.rng.choice(SALTS)

    async def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **options)

    async def asked(self, path: str, body: Any, *, status: int = 200) -> Any:
        """The answer to what is in order.

        Raises:
            WrongAnswerError: it is an error.
        """
        response = await self.post(path, body)
        check(response.status_code == status, f"{path} was answered {response.status_code}: {response.text[:400]}")
        return response.json()

    @asynccontextmanager
    async def stream(self, path: str, body: Any, **options: Any) -> AsyncIterator[AsyncIterator[Message]]:
        """Server-sent events of what is in order. Leaving it before their end hangs up."""
        async with self.http.stream("POST", path, json=body, **options) as response:
            if response.status_code != 200:
                await response.aread()
                raise WrongAnswerError(f"{path} was answered {response.status_code}: {response.text[:400]}")
            yield messages(response)


@dataclass(frozen=True)
class Message:
    """A server-sent event; `data` is None at [DONE]."""

    data: Any
    id: int = 0


async def messages(response: httpx.Response) -> AsyncIterator[Message]:
    """The events of a stream.

    Raises:
        WrongAnswerError: one of them is an error.
    """
    number = 0
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            data = None if value == "[DONE]" else json.loads(value)
            if isinstance(data, dict) and "error" in data:
                raise StreamError(data["error"])
            yield Message(data, number)


class StreamError(WrongAnswerError):
    """A stream ended in an error, which `error` is."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"the stream ended in {error}")
        self.error = error


def check(holds: bool, message: str) -> None:
    """Raise WrongAnswerError where something does not hold."""
    if not holds:
        raise WrongAnswerError(message)


def check_error(response: httpx.Response, allowed: tuple[int, ...]) -> str:
    """Check that an answer is one of OpenAI's error objects, and of an allowed status; returns the status.

    Raises:
        WrongAnswerError: it is not.
    """
    what = f"{response.request.method} {response.request.url.path} was answered {response.status_code}"
    check(response.status_code in allowed, f"{what}, not {allowed}: {response.text[:400]}")
    if response.status_code != 200:
        error = response.json().get("error")
        check(isinstance(error, dict) and bool(error.get("message")), f"{what} without an error: {response.text[:400]}")
        check({"message", "type", "param", "code"} <= error.keys(), f"{what} with {error}")
    if response.status_code == 503:
        check("retry-after" in response.headers, f"{what} without Retry-After")
    return str(response.status_code)


Kind = Callable[[Visit], Awaitable[str]]
"""Does one visit; returns in a word how it ended well. Raises WrongAnswerError."""


@dataclass
class Book:
    """How the visits ended, by kind and by end.

    Attributes:
        wrong: the messages of broken laws, the first of each kind.
        broken: how many there were, by kind.
        lenient: while it is true, and for visits begun then, the server may be gone.
        begun: visits so far.
        open: those that have not ended, by number.
    """

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    lenient: bool = False
    begun: int = 0
    open: dict[int, str] = field(default_factory=dict)

    def begin(self, kind: str) -> int:
        """A visit begins; its number."""
        self.begun += 1
        self.open[self.begun] = kind
        return self.begun

    def open_since(self, number: int) -> list[str]:
        """The kinds of visits that are open and were begun before the one of this number."""
        return [kind for begun, kind in self.open.items() if begun <= number]

    def note_wrong(self, kind: str, message: str) -> None:
        """A law is broken."""
        self.broken[kind] += 1
        if self.broken[kind] <= 3:
            self.wrong.append(f"{kind}: {message}")

    def by_end(self) -> dict[str, dict[str, int]]:
        """Counts by kind, then by end."""
        found: dict[str, dict[str, int]] = {}
        for (kind, end), count in sorted(self.ends.items()):
            found.setdefault(kind, {})[end] = count
        return found


class Client:
    """Makes one visit after the other, of kinds drawn by weight.

    Args:
        kinds: by name, each with its weight.
        seed: of the draws; the first visit goes through the kinds with it, so that many clients make all of them.
    """

    def __init__(
        self, http: httpx.AsyncClient, book: Book, kinds: Mapping[str, tuple[Kind, float]], scale: Scale, seed: int
    ) -> None:
        self._visit = Visit(http, random.Random(seed), scale)
        self._book = book
        self._kinds = kinds
        self._names = list(kinds)
        self._weights = [weight for _, weight in kinds.values()]
        self._first: str | None = self._names[seed % len(kinds)]

    async def run(self, until: asyncio.Event) -> None:
        """Make visits until `until` is set; the last one is not cut short."""
        while not until.is_set():
            name = self._first or self._visit.rng.choices(self._names, self._weights)[0]
            self._first = None
            number = self._book.begin(name)
            try:
                end = await self._made(name, self._book.lenient)
            finally:
                del self._book.open[number]
            self._book.ends[name, end] += 1
            if end == "cut":
                await asyncio.sleep(0.2)

    async def _made(self, name: str, lenient: bool) -> str:
        try:
            async with asyncio.timeout(LIMIT_S):
                return await self._kinds[name][0](self._visit)
        except TimeoutError:
            self._book.note_wrong(name, f"no answer within {LIMIT_S:g} s")
            return "hangs"
        except WrongAnswerError as error:
            return self._told(name, str(error), "told", lenient)
        except (httpx.TransportError, OSError) as error:
            return self._told(name, f"{type(error).__name__}: {error}", "cut", lenient)
        except Exception as error:  # an answer of another form than its kind expects
            return self._told(name, f"{type(error).__name__}: {error}", "told", lenient)

    def _told(self, name: str, message: str, end: str, lenient: bool) -> str:
        """The end of a visit that ended in an error, which is in order while the server may be gone."""
        if lenient or self._book.lenient:
            return end
        self._book.note_wrong(name, message)
        return "WRONG"
