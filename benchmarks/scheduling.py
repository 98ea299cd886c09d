"""Policies of the waiting queue under streams of arrivals: waits, hit rate, and what ageing costs.

    python benchmarks/scheduling.py [--requests N] [--json OUT]

The real scheduler on a device of simulated time: 10 ms a step and 20 us a token of it, 32 requests at once, a pool of
30,000 tokens. Times are simulated seconds, so the results are the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from any folder

from tests.scheduling_simulation import Arrival, Device, simulate

from palmette.runtime.config import Policy

DEVICE = Device(num_pages=30_000, slots=32)
NEVER_S = 1e6


def text(source: random.Random, length: int) -> list[int]:
    return [source.randrange(3, 46) for _ in range(length)]


def chat(count: int, source: random.Random) -> list[Arrival]:
    """60 system prompts of 800 tokens, a few of them popular, at a little more than the device can take."""
    systems = [text(source, 800) for _ in range(60)]
    weights = [1 / (place + 1) for place in range(60)]
    arrivals, now_s = [], 0.0
    for _ in range(count):
        now_s += source.expovariate(90.0)
        prompt = source.choices(systems, weights)[0] + text(source, 100)
        arrivals.append(Arrival(now_s, prompt, source.randrange(8, 64)))
    return arrivals


def documents(count: int, source: random.Random) -> list[Arrival]:
    """Questions on 60 documents of 1500 tokens, shuffled, all at once; the pool holds a third of the documents."""
    texts = [text(source, 1500) for _ in range(60)]
    prompts = [texts[place % 60] + text(source, 40) for place in range(count)]
    source.shuffle(prompts)
    return [Arrival(0.0, prompt, 16) for prompt in prompts]


def hits_for_ever(count: int, source: random.Random) -> list[Arrival]:
    """More requests with one cached prefix of 1000 tokens than the device can take, and each twentieth without."""
    prefix = text(source, 1000)
    arrivals, now_s = [], 0.0
    for place in range(count):
        now_s += 1 / 130
        cold = place % 20 == 10
        arrivals.append(Arrival(now_s, text(source, 1000) if cold else prefix + text(source, 20), 24))
    return arrivals


WORKLOADS: Sequence[Callable[[int, random.Random], list[Arrival]]] = (chat, documents, hits_for_ever)


@dataclass(frozen=True)
class Row:
    """One policy on one workload. `over_fcfs_s`: the most that a request began later than first come, first served."""

    workload: str
    policy: str
    max_wait_s: float | None
    median_s: float
    p95_s: float
    max_s: float
    over_fcfs_s: float
    hit_rate: float
    ended_s: float
    retractions: int


def measure(workload: str, arrivals: Sequence[Arrival], policy: str, max_wait_s: float, in_turn: list[float]) -> Row:
    """Simulate one policy; `in_turn` has the waits under first come, first served, and is filled where it is empty."""
    outcome = simulate(arrivals, DEVICE, policy=policy, max_wait_s=max_wait_s, max_queued_requests=len(arrivals) + 1)
    waits = outcome.waits_s()
    if not in_turn:
        in_turn.extend(waits)
    ranked = sorted(waits)
    return Row(
        workload,
        policy,
        None if max_wait_s == NEVER_S else max_wait_s,
        round(ranked[len(ranked) // 2], 3),
        round(ranked[int(0.95 * len(ranked))], 3),
        round(ranked[-1], 3),
        round(max(wait - other for wait, other in zip(waits, in_turn, strict=True)), 3),
        round(outcome.hit_rate, 4),
        round(outcome.ended_s, 2),
        outcome.retractions,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(
        f"{'workload':<14}{'policy':<11}{'ageing':>7}{'median s':>10}{'p95 s':>8}{'max s':>8}{'over fcfs':>10}"
        f"{'hit rate':>9}{'all done s':>11}"
    )
    for workload in WORKLOADS:
        arrivals = workload(arguments.requests, random.Random(1))
        in_turn: list[float] = []
        for policy in get_args(Policy):
            for max_wait_s in (2.0,) if policy == "fcfs" else (NEVER_S, 2.0):
                row = measure(workload.__name__, arrivals, policy, max_wait_s, in_turn)
                rows.append(row)
                ageing = "none" if row.max_wait_s is None else f"{row.max_wait_s:g} s"
                print(
                    f"{row.workload:<14}{policy:<11}{ageing:>7}{row.median_s:>10.2f}{row.p95_s:>8.2f}{row.max_s:>8.2f}"
                    f"{row.over_fcfs_s:>10.2f}{row.hit_rate:>9.3f}{row.ended_s:>11.1f}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
