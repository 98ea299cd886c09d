"""Streams of programs through an engine, and what is measured of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.programs_clients import CallClient, Client, Finished, Place, TreeClient
from benchmarks.programs_infinite import RunRequest, hit_rate, optimal_hit_rate
from benchmarks.programs_workload import Item, Texts, mix

from palmette.runtime.config import EngineConfig
from palmette.runtime.messages import SchedulerStats

WARM_UP, COOL_DOWN = 0.2, 0.1
"""The first and last parts of the programs, which are run and not measured."""


@dataclass(frozen=True)
class System:
    """How programs are run: by whom, and with which settings of the engine."""

    client: type[Client]
    settings: Mapping[str, Any] = field(default_factory=dict)


SYSTEMS = {
    "tree_aware": System(TreeClient),
    "call_by_call": System(CallClient, {"policy": "fcfs"}),
}
"""The two that are compared."""

POLICIES = {
    **SYSTEMS,
    "call_by_call lpm": System(CallClient, {"policy": "lpm"}),
    "tree_aware fcfs": System(TreeClient, {"policy": "fcfs"}),
    "tree_aware lpm": System(TreeClient, {"policy": "lpm"}),
    "tree_aware keeps none": System(TreeClient, {"keep_prefixes": False}),
    "tree_aware fcfs, keeps none": System(TreeClient, {"policy": "fcfs", "keep_prefixes": False}),
}
"""What `--policies` compares: the two, and each policy exchanged or left out."""


class Machine(Place, Protocol):
    """An engine that streams of programs are run on, once."""

    @property
    def requests(self) -> list[RunRequest]: ...

    def stats(self) -> SchedulerStats: ...

    def run(self, unfinished: Callable[[], bool]) -> None:
        """Let happen what was asked for, as long as programs are unfinished."""


@dataclass(frozen=True)
class Bench:
    """What all systems share.

    Attributes:
        machine: starts an engine.
        texts: what programs are made of.
        count, seed: of the programs.
        round_trip_s: from the end of a call at the engine to the arrival of the client's next message.
        job: how many programs arrive at once, on average.
    """

    machine: Callable[[EngineConfig], Machine]
    texts: Texts
    count: int
    seed: int = 1
    round_trip_s: float = 0.02
    job: int = 16

    @property
    def items(self) -> list[Item]:
        """The programs, the same for every system."""
        return mix(self.count, self.seed)


@dataclass(frozen=True)
class Outcome:
    """What became of a stream of programs.

    Attributes:
        finished: all programs, in the order in which they count.
        programs_per_s: completions between the end of the warm-up and the last program's beginning.
        hit_rate, optimal_hit_rate: of all prompts, and of those with a cache without an end.
        requests: how many were run.
        stats: of the scheduler at the end.
    """

    finished: Sequence[Finished]
    programs_per_s: float
    hit_rate: float
    optimal_hit_rate: float
    requests: int
    stats: SchedulerStats

    def seconds(self, part: float, kind: str | None = None) -> float:
        """The quantile of the time that programs took, of those between warm-up and cool-down."""
        times = sorted(each.seconds for each in self._measured if kind in (None, each.item.kind))
        return times[min(len(times) - 1, int(part * len(times)))] if times else 0.0

    @property
    def mean_s(self) -> float:
        measured = self._measured
        return sum(each.seconds for each in measured) / max(1, len(measured))

    @property
    def _measured(self) -> Sequence[Finished]:
        count = len(self.finished)
        return self.finished[int(WARM_UP * count) : count - int(COOL_DOWN * count)]


def open_loop(bench: Bench, system: System, rate: float) -> Outcome:
    """Programs that arrive at random, `rate` a second on average, in jobs that somebody hands in at once."""
    run = _Run(bench, system)
    for item, at_s in zip(bench.items, arrivals(bench, rate), strict=True):
        run.begin(item, at_s)
    return run.outcome(lambda each: each.began_s)


def closed_loop(bench: Bench, system: System, in_flight: int) -> Outcome:
    """Programs of which `in_flight` are under way at any time, as long as there are so many."""
    run = _Run(bench, system)
    left = iter(bench.items[in_flight:])

    def follow(finished: Finished) -> None:
        item = next(left, None)
        if item is not None:
            run.begin(item, finished.ended_s)

    run.after = follow
    for item in bench.items[:in_flight]:
        run.begin(item, 0.0)
    return run.outcome(lambda each: each.ended_s)


def arrivals(bench: Bench, rate: float) -> list[float]:
    """When the programs arrive: jobs come as in a Poisson process, of 1 to twice as many programs as on average."""
    source, at_s, times = random.Random(bench.seed), 0.0, list[float]()
    while len(times) < bench.count:
        at_s += source.expovariate(rate / bench.job)
        times += [at_s] * source.randint(1, 2 * bench.job - 1)
    return times[: bench.count]


class _Run:
    """One stream of programs through one engine."""

    def __init__(self, bench: Bench, system: System) -> None:
        self._bench = bench
        self._client = system.client
        self._machine = bench.machine(EngineConfig(seed=1, max_queued_requests=1 << 20, **system.settings))
        self._finished: list[Finished] = []
        self._last_s = 0.0
        self.after: Callable[[Finished], None] | None = None

    def begin(self, item: Item, at_s: float) -> None:
        """Have a program begin at a time."""
        client = self._client(self._machine, item, self._bench.texts, self._bench.round_trip_s, self._end)
        self._last_s = max(self._last_s, at_s)
        self._machine.time.at(at_s, client.start)

    def _end(self, finished: Finished) -> None:
        self._finished.append(finished)
        if self.after is not None:
            self.after(finished)

    def outcome(self, order: Callable[[Finished], float]) -> Outcome:
        """Run, and return what became of the programs, in this order."""
        self._machine.run(lambda: len(self._finished) < self._bench.count)
        ended = sorted(each.ended_s for each in self._finished)
        first_s = ended[int(WARM_UP * len(ended))]
        completed = sum(first_s < at_s <= self._last_s for at_s in ended)
        requests = self._machine.requests
        return Outcome(
            finished=sorted(self._finished, key=order),
            programs_per_s=completed / (self._last_s - first_s) if self._last_s > first_s else 0.0,
            hit_rate=hit_rate(requests),
            optimal_hit_rate=optimal_hit_rate(requests),
            requests=len(requests),
            stats=self._machine.stats(),
        )
