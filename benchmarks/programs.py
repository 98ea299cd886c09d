"""Programs whose trees the engine sees, against the same engine fed one request a call, first come, first served.

    python benchmarks/programs.py [--simulate] [--json OUT] [--policies [NAME ...]] [--pool-tokens N] [--rate R]
        [--round-trip-ms MS] [--programs N] [--in-flight N] [--job N] [--seed N] [--scale X] [--model MODEL]

Six kinds of programs, all at once (`programs_workload.py`), each as one tree in one session, or as calls that are
sessions of their own. With `--simulate` it is the real scheduler in simulated time (`programs_simulation.py`): steps
take as long as those of an 8B model on an H200, by the measurements behind `serving_device.py`, without a kernel that
reads shared prefixes once. Otherwise it is the default model on this CPU, and smaller programs.

Both systems run the same programs. Closed loop: `--in-flight` of them at any time. The saturation rate of call-by-call
is the most that it ends in a second with that many or fewer in flight. Open loop: at 0.9 times that rate both get the
same programs at the same moments, in jobs of 1 to 31 that are handed in at once.

`--json` writes for each system `mean_s`, `p50_s`, `p95_s`, `p99_s`, `hit_rate` and `optimal_hit_rate` (of a cache
without an end, see `programs_infinite.py`) of the open loop, and `programs_per_s` of the closed loop.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.programs_measure import POLICIES, SYSTEMS, Bench, Outcome, closed_loop, open_loop
from benchmarks.programs_real import RealEngine
from benchmarks.programs_simulation import SimulatedEngine
from benchmarks.programs_workload import KINDS, Texts

from palmette.runtime.config import EngineConfig

POOL_TOKENS = 131_072
"""What the weights of an 8B model leave of a card of 40 GB. At this load conversations compete for it."""

REAL_SCALE, REAL_FIRST_ID = 0.06, 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the systems that are asked for."""
    given = _parser().parse_args(arguments)
    bench = _bench(given)
    in_flight = given.in_flight or (256 if given.simulate else 12)
    names = list(SYSTEMS) if given.policies is None else given.policies or list(POLICIES)
    if not given.simulate:  # whoever runs first would pay for what is loaded and compiled once
        closed_loop(replace(bench, count=4), SYSTEMS["call_by_call"], 4)
    closed = {name: _shown(name, "closed", closed_loop(bench, POLICIES[name], in_flight)) for name in names}
    rate = given.rate or 0.9 * saturation_rate(bench, in_flight, closed.get("call_by_call"))
    print(f"open loop: {rate:.2f} programs a second", flush=True)
    results: dict[str, Any] = {"settings": {**vars(given), "json": str(given.json)}, "rate": rate}
    for name in names:
        results[name] = figures(_shown(name, "open", open_loop(bench, POLICIES[name], rate)), closed[name])
    if given.json:
        given.json.write_text(json.dumps(results, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="an H200 in simulated time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--policies", nargs="*", choices=POLICIES, metavar="NAME", help="none is all of them")
    parser.add_argument("--programs", type=int, help="1000, or 36 on the CPU")
    parser.add_argument("--in-flight", type=int, help="of the closed loop: 256, or 12 on the CPU")
    parser.add_argument("--pool-tokens", type=int, help=f"{POOL_TOKENS}, or 2048 on the CPU")
    parser.add_argument("--rate", type=float, help="programs a second; left out, 0.9 of call-by-call's saturation")
    parser.add_argument("--job", type=int, help="programs that arrive at once, on average: 16, or 4 on the CPU")
    parser.add_argument("--round-trip-ms", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, help=f"of all lengths: 1, or {REAL_SCALE} on the CPU")
    parser.add_argument("--model", help="what runs on the CPU; left out, the default model")
    return parser


def _bench(given: argparse.Namespace) -> Bench:
    if given.simulate:
        machine = partial(SimulatedEngine, pool_tokens=given.pool_tokens or POOL_TOKENS)
        texts = Texts(scale=given.scale or 1.0)
        return Bench(machine, texts, given.programs or 1000, given.seed, given.round_trip_ms / 1000, given.job or 16)
    texts = Texts(scale=given.scale or REAL_SCALE, first_id=REAL_FIRST_ID, exact=True)
    start = partial(_started, given.model, given.pool_tokens or 2048)
    return Bench(start, texts, given.programs or 36, given.seed, given.round_trip_ms / 1000, given.job or 4)


def _started(model: str | None, pool_tokens: int, config: EngineConfig) -> RealEngine:
    settings = {name: getattr(config, name) for name in EngineConfig.__dataclass_fields__}
    return RealEngine(EngineConfig(**{**settings, "model": model, "device": "cpu", "max_total_tokens": pool_tokens}))


def saturation_rate(bench: Bench, in_flight: int, most: Outcome | None) -> float:
    """The most programs that call-by-call ends in a second, over numbers in flight: with too many it does worse."""
    system, rates = SYSTEMS["call_by_call"], list[float]()
    outcome = most or closed_loop(bench, system, in_flight)
    while not rates or outcome.programs_per_s > 0.9 * max(rates):
        rates.append(outcome.programs_per_s)
        in_flight //= 2
        if in_flight < 4:
            break
        outcome = closed_loop(replace(bench, count=max(bench.count // 2, 3 * in_flight)), system, in_flight)
    return max(rates)


def _shown(name: str, loop: str, outcome: Outcome) -> Outcome:
    kinds = ", ".join(f"{kind.split()[0].strip(',')} {outcome.seconds(0.95, kind):.1f}" for kind in KINDS)
    print(
        f"{name:<20} {loop:<6} mean {outcome.mean_s:.2f} s, p50 {outcome.seconds(0.5):.2f}, p95"
        f" {outcome.seconds(0.95):.2f}, p99 {outcome.seconds(0.99):.2f}; {outcome.programs_per_s:.2f} programs/s; hit"
        f" rate {outcome.hit_rate:.4f} of {outcome.optimal_hit_rate:.4f}; {outcome.requests} requests in"
        f" {outcome.stats.steps} steps, {outcome.stats.retractions} retracted; p95 {kinds}",
        flush=True,
    )
    return outcome


def figures(opened: Outcome, closed: Outcome) -> dict[str, Any]:
    """What `--json` has of a system."""
    return {
        "mean_s": opened.mean_s,
        "p50_s": opened.seconds(0.5),
        "p95_s": opened.seconds(0.95),
        "p99_s": opened.seconds(0.99),
        "programs_per_s": closed.programs_per_s,
        "hit_rate": opened.hit_rate,
        "optimal_hit_rate": opened.optimal_hit_rate,
        "closed_loop_hit_rate": closed.hit_rate,
        "kinds": {kind: {"p50_s": opened.seconds(0.5, kind), "p95_s": opened.seconds(0.95, kind)} for kind in KINDS},
    }


if __name__ == "__main__":
    main()
