"""Finds the quickest tiling of `linear` for every shape and number of rows, on the GPU at hand.

    python benchmarks/tune_linear.py [--seconds 140] [--json OUT/tune_linear.json] [--only "8b"]
    python benchmarks/tune_linear.py --table OUT/tune_linear.json

The second form writes the module `palmette.runtime.kernels.linear_measured` from what the first one found; format it.

Kernels are compiled by many processes first; then each runs in a CUDA graph over copies of the weights that do not fit
in the L2 cache. The two quickest of a shape are timed once more with dependent launches. What is not reached in time is
left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.kernel_timing import copies_beyond_cache, graph_seconds, random_copies
from benchmarks.linear_candidates import LAYERS_8B, ROWS, SHAPES, candidates

from palmette.runtime.kernels import linear_measured
from palmette.runtime.kernels.linear import multiply
from palmette.runtime.kernels.linear_tiling import Tiling

Case = tuple[str, int]
"""The name of a shape, and a number of rows."""

_KINDS = ("plain", "dependent")

Job = tuple[int, Tiling]
"""Inputs and a tiling: what decides which kernel is compiled."""


def compile_kernel(job: Job) -> str | None:
    """Runs a small product, so that the kernel is compiled and in Triton's cache; what went wrong, if it did."""
    inputs, tiling = job
    rows = max(1, tiling.block_m - 1)
    try:
        x, weight = (torch.randn(n, inputs, device="cuda").bfloat16() for n in (rows, max(64, 2 * tiling.block_n)))
        torch.cuda.synchronize()
        found, expected = multiply(x, weight, None, tiling).float(), functional.linear(x, weight).float()
        error = float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected))
    except Exception as failure:  # of any kind: the tiling is left out
        return f"{type(failure).__name__}: {failure}"
    return None if error < 1e-2 else f"relative error {error}"


def compiled(pool: Executor, wanted: dict[Case, list[Tiling]]) -> dict[Case, list[Tiling]]:
    """Those that compile and multiply rightly."""
    jobs = {(SHAPES[name][1], tiling) for (name, _), tilings in wanted.items() for tiling in tilings}
    ordered = sorted(jobs, key=repr)
    failures = dict(zip(ordered, pool.map(compile_kernel, ordered), strict=True))
    for job, failure in failures.items():
        if failure is not None:
            print(f"left out {job}: {failure}", flush=True)
    return {
        (name, rows): [tiling for tiling in tilings if failures[SHAPES[name][1], tiling] is None]
        for (name, rows), tilings in wanted.items()
    }


HEAD = '''"""The quickest tilings of `linear` on an H200, as `benchmarks/tune_linear.py --table` writes them."""

from __future__ import annotations

Values = tuple[int, int, int, int, int, int, bool]
"""The fields of a `Tiling`."""

MEASURED: dict[tuple[int, int], tuple[tuple[int, Values | None], ...]] = {
    # (outputs, inputs): for up to so many rows, a tiling, or None where cuBLAS is quicker'''


class Bench:
    """Times products of one shape and number of rows after the other; the weights of a shape are made once."""

    def __init__(self) -> None:
        self._shape = (0, 0)
        self._weights: list[Tensor] = []

    def seconds(self, shape: tuple[int, int], rows: int, tiling: Tiling | None) -> float:
        """Of one product, through torch where there is no tiling."""
        if shape != self._shape:
            self._weights.clear()
            self._shape = shape
            self._weights = random_copies(copies_beyond_cache(2 * shape[0] * shape[1]), *shape, scale=0.02)
        weights, x = self._weights, random_copies(1, rows, shape[1])[0]

        def call(i: int) -> Tensor:
            weight = weights[i % len(weights)]
            return functional.linear(x, weight) if tiling is None else multiply(x, weight, None, tiling)

        first = call(0)
        if tiling is not None and not all(torch.equal(call(0), first) for _ in range(2)):
            raise AssertionError(f"{tiling} gives different answers to the same question")
        large = shape[0] * shape[1] > 1 << 28
        return graph_seconds(call, launches=6 if large else 24, replays=5)


def timed(bench: Bench, wanted: dict[Case, list[Tiling]], until: float, found: list[dict[str, Any]]) -> None:
    """Adds a record for each tiling, as far as time reaches."""
    for (name, rows), tilings in wanted.items():
        for tiling in tilings:
            if time.monotonic() > until:
                print(f"out of time at {name}, {rows} rows", flush=True)
                return
            try:
                seconds = bench.seconds(SHAPES[name], rows, tiling)
            except AssertionError as failure:
                print(f"left out: {failure}", flush=True)
                continue
            found.append({"shape": name, "rows": rows, "seconds": seconds, "tiling": asdict(tiling)})


def best(found: Iterable[dict[str, Any]], case: Case) -> list[dict[str, Any]]:
    """Records of a case that have a tiling, quickest first."""
    mine = [record for record in found if (record["shape"], record["rows"]) == case and record["tiling"]]
    return sorted(mine, key=lambda record: float(record["seconds"]))


def tune(cases: list[Case], seconds: float, found: list[dict[str, Any]]) -> None:
    began, bench = time.monotonic(), Bench()
    context = multiprocessing.get_context("spawn")
    workers = max(1, (os.cpu_count() or 2) - 1)
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        plain = compiled(pool, {(name, rows): candidates(rows, *SHAPES[name]) for name, rows in cases})
        print(f"compiled after {time.monotonic() - began:.0f} s", flush=True)
        for name, rows in cases:
            record = {"shape": name, "rows": rows, "tiling": None}
            found.append(record | {"seconds": bench.seconds(SHAPES[name], rows, None)})
        timed(bench, plain, began + 0.75 * seconds, found)
        print(f"timed after {time.monotonic() - began:.0f} s", flush=True)
        second = {case: [Tiling(**r["tiling"] | {"dependent": True}) for r in best(found, case)[:2]] for case in cases}
        timed(bench, compiled(pool, second), began + seconds, found)
        print(f"done after {time.monotonic() - began:.0f} s", flush=True)


def summary(found: list[dict[str, Any]], cases: list[Case]) -> Iterator[str]:
    """A line a case, and the products of a step of the 8B model."""
    steps: dict[int, list[float]] = {}
    yield f"{'shape':<20} {'rows':>4} {'us':>8} {'TB/s':>5} {'cuBLAS':>8} {'TB/s':>5}  tiling; best of each kind, us"
    for name, rows in cases:
        records, number = best(found, (name, rows)), 2 * SHAPES[name][0] * SHAPES[name][1]
        torch_s = next(r["seconds"] for r in found if (r["shape"], r["rows"], r["tiling"]) == (name, rows, None))
        if not records:
            continue
        first = records[0]
        kinds = {_KINDS[record["tiling"]["dependent"]]: 1e6 * record["seconds"] for record in reversed(records)}
        yield (
            f"{name:<20} {rows:>4} {1e6 * first['seconds']:>8.1f} {number / first['seconds'] / 1e12:>5.2f}"
            f" {1e6 * torch_s:>8.1f} {number / torch_s / 1e12:>5.2f}  {tuple(map(int, first['tiling'].values()))}"
            f" {', '.join(f'{name} {us:.1f}' for name, us in kinds.items())}"
        )
        if name.startswith("8b") and "49152" not in name:
            times = 1 if "lm_head" in name else LAYERS_8B
            sums = steps.setdefault(rows, [0.0, 0.0])
            sums[0] += times * min(first["seconds"], torch_s)
            sums[1] += times * torch_s
    for rows, (ours, torch_s) in steps.items():
        yield f"all products of an 8B step, {rows} rows: {1e3 * ours:.3f} ms, cuBLAS {1e3 * torch_s:.3f} ms"


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """The module `linear_measured`, to be formatted."""
    yield HEAD
    for name, (outputs, inputs) in SHAPES.items():
        entries = []
        for rows in ROWS:
            records = best(found, (name, rows))
            torch_s = [r["seconds"] for r in found if (r["shape"], r["rows"], r["tiling"]) == (name, rows, None)]
            if records:
                quicker = records[0]["seconds"] < min(torch_s)
                entries.append(f"({rows}, {tuple(records[0]['tiling'].values()) if quicker else None})")
        if entries:
            yield f"    ({outputs}, {inputs}): ({', '.join(entries)},),"
    yield "}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--json", type=Path, default=Path(os.environ.get("OUT", ".")) / "tune_linear.json")
    parser.add_argument("--only", default="", help="part of the names of the shapes to tune")
    parser.add_argument("--table", type=Path, help="write the table that an earlier run found, and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        lines = table(json.loads(arguments.table.read_text()))
        Path(linear_measured.__file__).write_text("\n".join(lines) + "\n")
        return
    cases = [(name, rows) for name in SHAPES if arguments.only in name for rows in ROWS]
    found: list[dict[str, Any]] = []
    try:
        tune(cases, arguments.seconds, found)
    finally:
        arguments.json.write_text(json.dumps(found))
    print("\n".join(summary(found, cases)))


if __name__ == "__main__":
    main()
