"""benchmarks/batches.py in small: nothing is left of programs that have ended, and a killed batch is gone on with."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from benchmarks import batches

from palmette.lang.execution import Execution
from palmette.runtime.request_tree import RequestTree


def test_an_engine_keeps_nothing_of_programs_that_have_ended(tmp_path: Path) -> None:
    """After 300 programs on a real engine no run, no request tree and no session is alive, and every page is back."""
    before = alive()  # of other tests
    with batches.engine(tmp_path) as backend:
        states = batches.small.run_batch(batches.items(300), backend=backend, num_threads=32, generator_style=True)
        assert all(state.error() is None for state in states)
        stats = backend.stats()
        assert backend.open_sessions == 0
        assert [each for each in alive() if not any(each is other for other in before)] == []
        assert stats.free_pages + stats.evictable_pages == stats.total_pages


def alive() -> list[object]:
    """Every run and request tree of this process that something still holds."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) in (Execution, RequestTree)]


def test_a_killed_batch_is_gone_on_with() -> None:
    """After a SIGKILL in the middle, what was written is not run again, and every item has one line in order."""
    resumed = batches.killed_and_resumed(400, 16)
    assert resumed.whole
    assert resumed.kept >= 200
    assert (resumed.kept + resumed.ran, resumed.lines) == (400, 400)


def test_rows_and_the_line_through_them(tmp_path: Path) -> None:
    """A batch is measured in tenths, and the time of several is fitted."""
    rows = [batches.run(count, 8, tmp_path / str(count)) for count in (20, 40)]
    assert [(row.programs, len(row.rss_mb), len(row.seconds), row.failed) for row in rows] == [
        (20, 10, 10, 0),
        (40, 10, 10, 0),
    ]
    straight = [
        batches.Row(count, 8, results_file=False, distinct=count, cpu_s=[1 + count / 100]) for count in (100, 200, 400)
    ]
    line = batches.fit(straight)
    assert line == pytest.approx({"ms_per_program": 10.0, "start_s": 1.0, "r_squared": 1.0})
