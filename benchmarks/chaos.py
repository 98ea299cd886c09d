"""A server under abuse: hundreds of clients, good and bad, and what must hold during it and after it.

    python benchmarks/chaos.py --seconds 300 --clients 300 [--model fake|NAME] [--without KIND,...] [--json OUT]
    python benchmarks/chaos.py --seconds 60 --clients 100 --kill scheduler|detokenizer|server|parent [--restart]

Clients make requests of all kinds (chaos_good.py, chaos_programs.py), go in the middle of them, abort, have no time,
and send what cannot be (chaos_abuse.py). Every good request must be answered validly, every bad one by an error that
says why; at the end nothing is open, every page is free or cached, and after a flush free. Without the kind "hard
grammar" no process may grow by more than 2 % after the first minute; hard grammars take what their limits allow them,
more when several run at once, so with them the growth is only shown. With --kill the engine is that of `palmette
serve`, and a process of it gets SIGKILL in the middle: nobody may hang, and the parent ends with code 1, or with
--restart goes on. Ends with code 1 where something did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from any folder

from benchmarks.chaos_client import FAKE, SMALL, Scale
from benchmarks.chaos_kill import killed_run
from benchmarks.chaos_storm import Outcome, storm_and_rest

from palmette.bench import fake_model
from palmette.runtime.config import EngineConfig
from palmette.runtime.launch import launch
from palmette.runtime.processes.runtime_client import Runtime
from palmette.runtime.server_settings import ServerSettings

HARD = "hard grammar"
MOST_GROWTH = 0.02
MOST_GROWTH_BYTES = 4 << 20
"""What any process may grow by: 2 % of a small one is no more than the grain of its allocator."""
POOL_TOKENS = 60_000
"""Small enough to be full within the first minute: until then a cache grows."""
GRAMMAR_CACHE_BYTES = 16 << 20
FAKE_STEP_S = 0.01


def start(model: str, folder: Path) -> tuple[Runtime, Scale]:
    """An engine on a model, or on the one that computes nothing."""
    if model != "fake":
        name = None if model == "default" else model
        runtime = launch(name, max_total_tokens=POOL_TOKENS, grammar_cache_bytes=GRAMMAR_CACHE_BYTES, seed=0)
        return runtime, SMALL
    config = EngineConfig(
        model=str(fake_model.write_folder(folder)),
        context_length=FAKE.context_length,
        max_total_tokens=POOL_TOKENS,
        grammar_cache_bytes=GRAMMAR_CACHE_BYTES,
        seed=0,
    )
    server = ServerSettings(log_level="warning")
    return Runtime.start(config, server, loader=fake_model.LOADER, loader_options={"step_s": FAKE_STEP_S}), FAKE


def report(outcome: Outcome) -> dict[str, Any]:
    """Print what came of a run, and return it for JSON."""
    book = outcome.book
    total = sum(book.ends.values())
    print(f"{total} visits in {outcome.seconds:.0f} s, {sum(book.broken.values())} of them wrong")
    for kind, ends in book.by_end().items():
        print(f"  {kind:<20} {sum(ends.values()):>7}  {', '.join(f'{end} {count}' for end, count in ends.items())}")
    for name, sizes in outcome.memory.items():
        shown = " ".join(f"{size:8.1f}" for size in sizes)
        print(f"  MiB of {name:<16} {shown}   growth after the first minute {outcome.growth[name][0]:+.1%}")
    for when, stats in outcome.stats.items():
        pages = {name: stats[name] for name in ("free_pages", "evictable_pages", "protected_pages", "total_pages")}
        print(f"  {when}: {pages}")
    for line in book.wrong:
        print(f"  WRONG {line}")
    return {
        "seconds": outcome.seconds,
        "visits": book.by_end(),
        "wrong": book.wrong,
        "memory_mib": outcome.memory,
        "growth": outcome.growth,
        "stats": outcome.stats,
    }


def run(arguments: argparse.Namespace) -> Outcome:
    """The run that was asked for."""
    if arguments.kill is not None:
        return asyncio.run(
            killed_run(
                arguments.model,
                arguments.kill,
                restart=arguments.restart,
                seconds=arguments.seconds,
                clients=arguments.clients,
            )
        )
    without = [name.strip() for name in arguments.without.split(",") if name.strip()]
    with tempfile.TemporaryDirectory() as folder:
        runtime, scale = start(arguments.model, Path(folder) / "fake")
        with runtime:
            outcome = asyncio.run(
                storm_and_rest(
                    runtime.url,
                    os.getpid(),
                    seconds=arguments.seconds,
                    clients=arguments.clients,
                    scale=scale,
                    seed=arguments.seed,
                    without=without,
                )
            )
    if HARD in without:
        _check_growth(outcome)
    return outcome


def _check_growth(outcome: Outcome) -> None:
    for name, (part, size) in outcome.growth.items():
        if part > MOST_GROWTH and size > MOST_GROWTH_BYTES and name in ("server", "scheduler", "detokenizer"):
            outcome.book.note_wrong("memory", f"the {name} grew by {part:.1%} after the first minute")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--model", default="default", help="'fake', 'default', or what palmette serve takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", default="", help="kinds of requests to leave out, with commas between them")
    parser.add_argument("--kill", choices=("scheduler", "detokenizer", "server", "parent"))
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    found = report(outcome := run(asked))
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1))
    return 1 if outcome.book.broken else 0


if __name__ == "__main__":
    sys.exit(main())
