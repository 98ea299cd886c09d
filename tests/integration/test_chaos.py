"""benchmarks/chaos.py for some seconds: the laws of a server under abuse. The model computes nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from benchmarks import chaos
from benchmarks.chaos_client import FAKE, Book
from benchmarks.chaos_kill import kill_under_load, well_again
from benchmarks.chaos_storm import KINDS, Outcome, rest, storm, storm_and_rest
from tests.engine_processes import fake_runtime

from palmette.runtime.processes.runtime_client import Runtime

SECONDS = 20.0
CLIENTS = 60
MOST_MIB = 1024.0


def test_a_server_keeps_its_laws_under_abuse(tmp_path: Path) -> None:
    """Good requests are answered well, bad ones told why; then nothing is open and every page is free."""
    runtime, scale = chaos.start("fake", tmp_path / "model")
    with runtime:
        outcome = asyncio.run(
            storm_and_rest(runtime.url, os.getpid(), seconds=SECONDS, clients=CLIENTS, scale=scale, seed=1)
        )
    assert outcome.book.wrong == []
    assert {kind for kind, _ in outcome.book.ends} == KINDS.keys()
    assert outcome.stats["after_flush"]["free_pages"] == outcome.stats["after_flush"]["total_pages"]
    assert all(max(sizes) < MOST_MIB for sizes in outcome.memory.values()), outcome.memory


def test_a_death_under_load_hangs_nobody(tmp_path: Path) -> None:
    """Whoever was there is told; the engine that is started anew keeps all laws."""
    with fake_runtime(tmp_path, step_s=0.005, restart=True) as runtime:
        outcome = asyncio.run(_with_a_death(runtime))
    assert outcome.book.wrong == []
    assert outcome.stats["after_flush"]["free_pages"] == outcome.stats["after_flush"]["total_pages"]


async def _with_a_death(runtime: Runtime) -> Outcome:
    book, until = Book(), asyncio.Event()
    without = ("too long", "hard grammar")
    storming = asyncio.create_task(
        storm(runtime.url, os.getpid(), book, until=until, clients=30, scale=FAKE, without=without)
    )
    await asyncio.sleep(3.0)
    await kill_under_load(runtime.pids["scheduler"], book)
    await well_again(runtime.url, book)
    await asyncio.sleep(3.0)
    until.set()
    outcome = await storming
    await rest(runtime.url, outcome)
    return outcome
