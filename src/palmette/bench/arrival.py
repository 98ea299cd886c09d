"""When jobs come: at a rate whatever the server does, or as soon as another one has ended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
Run = Callable[[Item, float], Awaitable[None]]
"""Does one job; the number is when it came, on the clock of `time.perf_counter`."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Jobs come at random, `rate` a second on average (a Poisson process): users who know nothing of each other."""

    rate: float
    seed: int = 0

    def times(self, count: int) -> list[float]:
        """When each of `count` jobs comes, in seconds from the start."""
        drawn = random.Random(self.seed)
        now = 0.0
        times = []
        for _ in range(count):
            times.append(now)
            now += drawn.expovariate(self.rate)
        return times

    async def drive(self, items: Sequence[Item], run: Run[Item]) -> None:
        """Start every job at its time, and wait for all. What the client itself is late by counts as waiting."""
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for item, due in zip(items, self.times(len(items)), strict=True):
                wait_s = start + due - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(_run(run, item, start + due))


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` jobs are under way at any time: what a server gives when it is always asked for more."""

    concurrency: int

    async def drive(self, items: Sequence[Item], run: Run[Item]) -> None:
        """Do every job, so many at once."""
        waiting = iter(items)

        async def work() -> None:
            for item in waiting:
                await run(item, time.perf_counter())

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.concurrency, len(items))):
                group.create_task(work())


async def _run(run: Run[Item], item: Item, came: float) -> None:
    await run(item, came)


Arrival = OpenLoop | ClosedLoop
