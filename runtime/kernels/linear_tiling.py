"""How a product of few rows is cut into programs: measured for the shapes of common models, by rule for others."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .linear_measured import MEASURED

MOST_ROWS = 128
"""Beyond these rows cuBLAS is as quick."""

MOST_PARTIALS = 1 << 22
MOST_TILES = 1 << 13
"""Room for sums over parts of K: float32 numbers of all programs, and blocks of N."""

_MULTIPROCESSORS = 132


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kernel runs.

    Attributes:
        block_m: 0: one row of x, on the ordinary cores; otherwise the most rows of x, on the matrix units (8 to 128).
        block_n, block_k: weights that a program takes at once; powers of 2.
        split_k: programs that share the inputs of a block of outputs.
        warps: a program's.
        stages: blocks on their way at once, with matrix units.
        dependent: the kernel starts while the one ahead of it in the stream ends, and fetches weights until then.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    warps: int
    stages: int = 1
    dependent: bool = False

    def fits(self, outputs: int) -> bool:
        """Whether the partial sums of a product with these many outputs have room."""
        tiles = -(-outputs // self.block_n)
        numbers = tiles * self.split_k * self.block_n * max(1, self.block_m)
        return self.split_k == 1 or (tiles <= MOST_TILES and numbers <= MOST_PARTIALS)


@functools.cache
def tiling_for(rows: int, outputs: int, inputs: int) -> Tiling | None:
    """How to multiply x [rows, inputs] by weights [outputs, inputs]; None: cuBLAS is quicker, or these do not fit."""
    if not 0 < rows <= MOST_ROWS or inputs % 16 or outputs % 8:
        return None
    for most_rows, tiling in MEASURED.get((outputs, inputs), ()):
        if rows <= most_rows:
            return None if tiling is None else Tiling(*tiling)
    return _by_rule(rows, outputs, inputs)


def _by_rule(rows: int, outputs: int, inputs: int) -> Tiling:
    """Some 60 KB on their way to each multiprocessor, in blocks that divide the inputs evenly where such exist."""
    if rows == 1:
        sizes = [size for size in (1024, 2048, 512, 256) if inputs % size == 0] or [1024]
        block_k = next((size for size in sizes if inputs // size <= 8), max(sizes))
        return Tiling(0, 4, block_k, 1, block_k // 256, dependent=True)
    block_m = max(16, 1 << (rows - 1).bit_length())
    block_n, block_k = (64, 128) if block_m <= 32 else (128, 64)
    tiles, steps = -(-outputs // block_n), -(-inputs // block_k)
    most = min(8 if block_m <= 32 else 4, 2 * _MULTIPROCESSORS // tiles, steps // 4)
    even = (split for split in range(most, 1, -1) if steps % split == 0)
    warps = 8 if block_m > 64 else 4
    tilings = (Tiling(block_m, block_n, block_k, split, warps, 4, dependent=True) for split in (*even, 1))
    return next(tiling for tiling in tilings if tiling.fits(outputs))
