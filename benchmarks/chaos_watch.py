"""What is looked at while clients come, and what must hold when they are gone."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from benchmarks.chaos_client import check

EVERY_S = 2.0
WARM_UP_S = 60.0
QUIET_S = 60.0
"""Time for what is open to end once no client is there."""


@dataclass
class Memory:
    """Resident bytes of the processes of an engine, by name, as they come.

    Args:
        parent: the id of the process above them.
    """

    parent: int
    samples: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    began_s: float = field(default_factory=time.monotonic)

    async def watch(self) -> None:
        """Look every two seconds, until cancelled."""
        while True:
            for name, size in resident_bytes(self.parent).items():
                self.samples[name].append((time.monotonic() - self.began_s, size))
            await asyncio.sleep(EVERY_S)

    def table(self) -> dict[str, list[float]]:
        """MiB of each process in each minute: the median of its samples."""
        found: dict[str, list[float]] = {}
        for name, samples in self.samples.items():
            minutes: dict[int, list[int]] = defaultdict(list)
            for at_s, size in samples:
                minutes[int(at_s // 60)].append(size)
            found[name] = [round(statistics.median(each) / 2**20, 1) for _, each in sorted(minutes.items())]
        return found

    def growth(self, name: str) -> tuple[float, int]:
        """How much a process grew from the half minute after the first minute to the last: as a part, and in bytes."""
        samples = self.samples[name]
        last_s = samples[-1][0]
        early = [size for at_s, size in samples if WARM_UP_S <= at_s < WARM_UP_S + 30]
        if not early:
            return 0.0, 0
        late = [size for at_s, size in samples if at_s > last_s - 30]
        before, after = statistics.median(early), statistics.median(late)
        return after / before - 1, int(after - before)


def resident_bytes(parent: int) -> dict[str, int]:
    """Of each process of an engine below `parent`, by its name."""
    found: dict[str, int] = {}
    for pid in descendants(parent):
        name = name_of(pid)
        if name is not None:
            found[name] = found.get(name, 0) + _resident_bytes(pid)
    return found


def descendants(parent: int) -> Iterator[int]:
    """The ids of all processes below one."""
    try:
        tasks = list(Path(f"/proc/{parent}/task").iterdir())
        below = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    except OSError:
        return
    for pid in below:
        yield pid
        yield from descendants(pid)


def name_of(pid: int) -> str | None:
    """The name of an engine's process; None of another one."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    named = next((word for word in words if word.startswith("palmette.runtime.")), "")
    return named.rpartition(".")[2].removesuffix("_process") or None


def _resident_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


async def come_to_rest(http: httpx.AsyncClient) -> dict[str, Any]:
    """Wait until nothing is open, flush the cache and check that every page is free; returns the last counts.

    Raises:
        WrongAnswerError: something is left.
    """
    deadline = time.monotonic() + QUIET_S
    while (left := _left(info := await _info(http))) and time.monotonic() < deadline:
        await asyncio.sleep(0.25)
    check(not left, f"{QUIET_S:g} s after the last client there are still {left}")
    stats = info["stats"]
    held = stats["free_pages"] + stats["evictable_pages"]
    check(held == stats["total_pages"], f"of {stats['total_pages']} pages {held} are free or evictable: {stats}")
    await http.post("/flush_cache")
    flushed = (await _info(http))["stats"]
    check(flushed["free_pages"] == flushed["total_pages"], f"after a flush not every page is free: {flushed}")
    return {"before_flush": stats, "after_flush": flushed}


def _left(info: dict[str, Any]) -> dict[str, int]:
    """What is not at rest."""
    counts = {**info["open"], **{name: info["stats"][name] for name in ("compiling", "waiting", "running")}}
    counts["protected_pages"] = info["stats"]["protected_pages"]
    return {name: count for name, count in counts.items() if count}


async def _info(http: httpx.AsyncClient) -> dict[str, Any]:
    response = await http.get("/server_info")
    check(response.status_code == 200, f"/server_info was answered {response.status_code}: {response.text[:300]}")
    found: dict[str, Any] = response.json()
    return found
