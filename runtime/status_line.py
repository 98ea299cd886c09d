"""One line of status every few seconds, while there is work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .errors import EngineError
from .logging_setup import Field, fields
from .messages import SchedulerStats

logger = logging.getLogger("palmette.status")


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two moments.

    Attributes:
        output_per_s, prompt_per_s: tokens a second, generated and taken from prompts, cached ones included.
        hit_rate: the part of the prompt tokens that came from the radix cache; None where there were none.
        device_fraction: the part of the working time in which the device computed; None where there was no work.
    """

    output_per_s: float
    prompt_per_s: float
    hit_rate: float | None
    device_fraction: float | None


def rates(before: SchedulerStats, after: SchedulerStats, elapsed_s: float) -> Rates:
    """The rates between two snapshots, `elapsed_s` seconds apart."""
    prompt = after.prompt_tokens - before.prompt_tokens
    cached = after.cached_tokens - before.cached_tokens
    working_s = after.working_s - before.working_s
    return Rates(
        output_per_s=(after.output_tokens - before.output_tokens) / elapsed_s,
        prompt_per_s=prompt / elapsed_s,
        hit_rate=cached / prompt if prompt > 0 else None,
        device_fraction=min(1.0, (after.device_s - before.device_s) / working_s) if working_s > 0 else None,
    )


def pages_used(stats: SchedulerStats) -> int:
    """Pages that running requests hold, by themselves or in the cache; the others can be had at once."""
    return stats.total_pages - stats.free_pages - stats.evictable_pages


class StatusLine:
    """Turns snapshots of the scheduler into fields of a status line; None while nothing happens."""

    def __init__(self) -> None:
        self._last: tuple[float, SchedulerStats] | None = None

    def feed(self, stats: SchedulerStats, now_s: float) -> dict[str, Field] | None:
        """The fields to write for this snapshot, taken at `now_s`; None where the engine was idle since the last."""
        last, self._last = self._last, (now_s, stats)
        if last is None or now_s <= last[0]:
            return None
        waits = stats.running + stats.waiting + stats.compiling
        if not waits and stats.finished + stats.failed + stats.aborted == _ended(last[1]):
            return None
        since = rates(last[1], stats, now_s - last[0])
        pages = stats.total_pages
        return {
            "running": stats.running,
            "waiting": stats.waiting,
            "compiling": stats.compiling or None,
            "output_tok_s": round(since.output_per_s, 1),
            "prompt_tok_s": round(since.prompt_per_s, 1),
            "hit_rate": None if since.hit_rate is None else round(since.hit_rate, 3),
            "pages_used": round(pages_used(stats) / pages, 3) if pages else None,
            "pages_cached": round(stats.evictable_pages / pages, 3) if pages else None,
            "retractions": stats.retractions - last[1].retractions or None,
        }


async def report_status(
    stats: Callable[[], Awaitable[SchedulerStats]], interval_s: float, *, now_s: Callable[[], float] | None = None
) -> None:
    """Log a status line every `interval_s` seconds of work, until it is cancelled or the engine ends.

    Args:
        stats: asks the scheduler for its counts, as `EngineService.stats` does.
        interval_s: 0 returns at once.
        now_s: the clock; the running loop's by default.
    """
    if interval_s <= 0:
        return
    clock = now_s or asyncio.get_running_loop().time
    line = StatusLine()
    while True:
        try:
            seen = line.feed(await stats(), clock())
        except EngineError:
            return  # whoever runs the engine tells of its end
        if seen is not None:
            logger.info("status", extra=fields(**seen))
        await asyncio.sleep(interval_s)


def _ended(stats: SchedulerStats) -> int:
    return stats.finished + stats.failed + stats.aborted
