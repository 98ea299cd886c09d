"""What of the benchmarks of kernels needs no GPU: arguments, bounds, tables, and the tilings to try."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.kernel_timing import Ceilings, Measured, copies_beyond_cache, table
from benchmarks.kernels import GROUPS, arguments_of, run
from benchmarks.linear_candidates import ROWS, SHAPES, candidates
from benchmarks.tune_linear import summary
from benchmarks.tune_linear import table as tiling_table

CEILINGS = Ceilings(4e12, 8e14)


def test_groups_are_chosen_by_name() -> None:
    """All of them unless told."""
    assert arguments_of([]).only is None
    assert arguments_of(["--only", "linear", "--only", "layers"]).only == ["linear", "layers"]
    with pytest.raises(SystemExit):
        arguments_of(["--only", "nothing"])
    assert "linear" in GROUPS


def test_a_group_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it measured before stays, and so do the other groups."""
    one = Measured("a", "1 x 1", 2e-6, bytes_moved=4e6)

    def breaks(_: Ceilings) -> Iterator[Measured]:
        yield one
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(sys.modules, "benchmarks.kernel_broken", SimpleNamespace(measure=breaks))
    monkeypatch.setitem(sys.modules, "benchmarks.kernel_good", SimpleNamespace(measure=lambda _: [one]))
    assert run(["broken", "good"], CEILINGS) == ([one, one], ["broken"])


def test_the_bound_is_the_slower_of_memory_and_matrix_units() -> None:
    """And the table gives the share that was reached."""
    by_memory = Measured("a", "1 x 1", 2e-6, bytes_moved=4e6, flops=1e6)
    by_units = Measured("b", "2 x 2", 4e-6, bytes_moved=4e6, flops=1.6e9, peers={"torch": 5e-6})
    assert by_memory.bound_s(CEILINGS) == pytest.approx(1e-6)
    assert by_units.bound_s(CEILINGS) == pytest.approx(2e-6)
    lines = list(table([by_memory, by_units], CEILINGS))
    assert [line.split()[0] for line in lines] == ["kernel", "a", "b"]
    assert "50%" in lines[1]
    assert lines[2].endswith("torch 5.0")
    assert json.loads(json.dumps(by_units.as_json(CEILINGS)))["peers"] == {"torch": 5e-6}


def test_inputs_rotate_beyond_the_cache() -> None:
    """Small ones many times, large ones at least twice."""
    assert copies_beyond_cache(1e9) == 2
    assert copies_beyond_cache(40e6) * 40e6 >= 240e6
    assert copies_beyond_cache(8) == 256


@pytest.mark.parametrize("name", SHAPES)
def test_candidates_suit_the_shape(name: str) -> None:
    """Blocks divide the inputs evenly, take all rows, and fit in a multiprocessor."""
    outputs, inputs = SHAPES[name]
    for rows in ROWS:
        found = candidates(rows, outputs, inputs)
        assert len(found) == len(set(found)) >= 5
        for tiling in found:
            assert inputs % (tiling.block_k * tiling.split_k) == 0
            assert tiling.block_m >= rows or (rows == 1 and tiling.block_m == 0)
            assert tiling.stages * 2 * tiling.block_k * (tiling.block_m + tiling.block_n) <= 227 * 1024 or rows == 1


def test_the_quickest_tiling_is_reported() -> None:
    """cuBLAS stays where it is quicker."""
    slow, quick = ({"block_m": 8, "block_n": n, "block_k": 64, "split_k": 1, "warps": 4} for n in (64, 128))
    options = {"stages": 4, "dependent": False}
    found = [
        {"shape": "8b o", "rows": rows, "seconds": seconds, "tiling": tiling}
        for rows, seconds, tiling in (
            (1, 3e-5, None),
            (1, 2e-5, slow | options),
            (1, 1e-5, quick | options),
            (8, 1e-5, None),
            (8, 2e-5, slow | options),
        )
    ]
    module: dict[str, Any] = {}
    exec("\n".join(tiling_table(found)), module)
    assert module["MEASURED"] == {(4096, 4096): ((1, (8, 128, 64, 1, 4, 4, False)), (8, None))}
    lines = list(summary(found, [("8b o", 1), ("8b o", 8)]))
    assert "10.0" in lines[1]
    assert lines[-2] == "all products of an 8B step, 1 rows: 0.320 ms, cuBLAS 0.960 ms"
