"""Reads a profiler's trace of a GPU: how much of the time it computed, where it had nothing to do, and on what."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of the trace's events that occupy the device."""


@dataclass(frozen=True)
class Work:
    """One kernel, copy or fill, in microseconds."""

    name: str
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Gap:
    """A time with nothing on the device, and what ran before and after it."""

    us: float
    after: str
    before: str


@dataclass(frozen=True)
class DeviceUse:
    """What the device did from the first work of a trace to the last.

    Attributes:
        busy_us: during which at least one piece of work ran.
        gaps: the longest, longest first.
        kernels: (name, times it ran, microseconds in all), those that took most first.
    """

    span_us: float
    busy_us: float
    gaps: tuple[Gap, ...]
    kernels: tuple[tuple[str, int, float], ...]

    @property
    def idle(self) -> float:
        """The part of the time in which nothing ran."""
        return 1 - self.busy_us / self.span_us if self.span_us else 0.0


def read_trace(path: Path) -> list[Work]:
    """The work on the device in a Chrome trace, in order of its beginning."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    work = [
        Work(str(event["name"]), float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if event.get("ph") == "X" and event.get("cat") in ON_DEVICE
    ]
    return sorted(work, key=lambda each: each.begin_us)


def device_use(work: Sequence[Work], *, shown: int = 8) -> DeviceUse:
    """Add up the work of a trace, which is in order of its beginning and may overlap."""
    if not work:
        return DeviceUse(0.0, 0.0, (), ())
    busy, end, last = 0.0, work[0].begin_us, work[0].name
    gaps = []
    for each in work:
        if each.begin_us > end:
            gaps.append(Gap(each.begin_us - end, last, each.name))
        if each.end_us > end:
            busy += each.end_us - max(end, each.begin_us)
            end, last = each.end_us, each.name
    longest = sorted(gaps, key=lambda gap: gap.us, reverse=True)[:shown]
    return DeviceUse(end - work[0].begin_us, busy, tuple(longest), _kernels(work)[:shown])


def _kernels(work: Iterable[Work]) -> tuple[tuple[str, int, float], ...]:
    times: dict[str, list[float]] = defaultdict(list)
    for each in work:
        times[each.name].append(each.end_us - each.begin_us)
    totals = [(name, len(each), sum(each)) for name, each in times.items()]
    return tuple(sorted(totals, key=lambda total: total[2], reverse=True))
