"""Many clients at one server, and what is left when they are gone."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from benchmarks.chaos_abuse import ABUSE
from benchmarks.chaos_client import LIMIT_S, Book, Client, Scale, WrongAnswerError
from benchmarks.chaos_good import GOOD
from benchmarks.chaos_programs import PROGRAMS
from benchmarks.chaos_watch import Memory, come_to_rest

KINDS = {**GOOD, **PROGRAMS, **ABUSE}
CLIENTS_A_POOL = 20
"""httpx looks through all connections of a pool for each request."""


@dataclass
class Outcome:
    """What came of a run."""

    book: Book
    memory: dict[str, list[float]] = field(default_factory=dict)
    growth: dict[str, tuple[float, int]] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@asynccontextmanager
async def pools(url: str, clients: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """HTTP clients for so many."""
    context = ssl.create_default_context()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS_A_POOL)
    made = [
        httpx.AsyncClient(base_url=url, timeout=LIMIT_S, limits=limits, verify=context, trust_env=False)
        for _ in range(-(-clients // CLIENTS_A_POOL))
    ]
    try:
        yield made
    finally:
        await asyncio.gather(*(http.aclose() for http in made))


async def storm(
    url: str,
    parent: int,
    book: Book,
    *,
    until: asyncio.Event,
    clients: int,
    scale: Scale,
    seed: int = 0,
    without: Collection[str] = (),
) -> Outcome:
    """Have so many clients at a server until `until` is set and their last visits are over.

    Args:
        parent: the process above those whose memory is looked at.
        without: kinds of requests that are not made.
    """
    kinds = {name: kind for name, kind in KINDS.items() if name not in without}
    began_s = time.monotonic()
    memory = Memory(parent)
    watching = asyncio.create_task(memory.watch())
    async with pools(url, clients) as made:
        runs = [Client(made[i % len(made)], book, kinds, scale, seed + i).run(until) for i in range(clients)]
        await asyncio.gather(*runs)
    watching.cancel()
    growth = {name: memory.growth(name) for name in memory.samples}
    return Outcome(book, memory.table(), growth, seconds=time.monotonic() - began_s)


async def storm_and_rest(
    url: str, parent: int, *, seconds: float, clients: int, scale: Scale, seed: int = 0, without: Collection[str] = ()
) -> Outcome:
    """Have so many clients at a server for so long, then look at what is left."""
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, until.set)
    outcome = await storm(url, parent, Book(), until=until, clients=clients, scale=scale, seed=seed, without=without)
    await rest(url, outcome)
    return outcome


async def rest(url: str, outcome: Outcome) -> None:
    """See that nothing is left at a server whose clients are gone."""
    async with pools(url, 1) as (http,):
        try:
            outcome.stats = await come_to_rest(http)
        except WrongAnswerError as error:
            outcome.book.note_wrong("at the end", str(error))
