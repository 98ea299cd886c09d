"""The shapes that `linear` is tuned for, and the tilings worth trying for each."""

from __future__ import annotations

from palmette.runtime.kernels.linear_tiling import Tiling

SHAPES_8B = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "lm_head": (128256, 4096),
}
"""(outputs, inputs) of Llama-3.1-8B."""

LAYERS_8B = 32

SHAPES = {
    **{f"8b {name}": shape for name, shape in SHAPES_8B.items()},
    "8b lm_head of 49152": (49152, 4096),
    "1b qkv": (3072, 2048),
    "1b o": (2048, 2048),
    "1b gate_up": (16384, 2048),
    "1b down": (2048, 8192),
    "1b lm_head": (128256, 2048),
}
"""Also Llama-3.2-1B's, and the vocabulary of the benchmark of JSON."""

ROWS = (1, 8, 16, 32, 64, 128)
"""Each stands for the numbers of rows down to the one before it."""

_MULTIPROCESSORS = 132
_SHARED_BYTES = 227 * 1024

_ONE_ROW = (
    # block_n, block_k, split_k, warps
    (1, 4096, 1, 4),
    (2, 4096, 1, 4),
    (2, 4096, 1, 8),
    (4, 4096, 1, 8),
    (2, 2048, 1, 4),
    (4, 2048, 1, 4),
    (4, 2048, 1, 8),
    (8, 2048, 1, 8),
    (4, 1024, 1, 4),
    (8, 1024, 1, 4),
    (4, 512, 1, 2),
    (4, 1024, 2, 4),
    (8, 1024, 2, 4),
    (8, 2048, 7, 8),
)

_SOME_ROWS: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    # block_m: block_n, block_k, warps, stages
    8: ((32, 256, 4, 4), (64, 128, 4, 5), (128, 128, 4, 4)),
    16: ((32, 256, 4, 4), (64, 128, 4, 5), (64, 256, 4, 4), (128, 128, 4, 4), (128, 64, 4, 6)),
    32: ((32, 256, 4, 3), (64, 128, 4, 5), (64, 256, 4, 4), (128, 128, 4, 4), (128, 64, 4, 5), (256, 64, 8, 4)),
    64: ((32, 128, 4, 4), (64, 128, 4, 4), (128, 64, 4, 4), (128, 64, 4, 5), (128, 128, 8, 4), (256, 64, 8, 5)),
    128: ((64, 128, 4, 4), (128, 64, 4, 4), (128, 64, 8, 5), (128, 128, 8, 3), (256, 64, 8, 3), (256, 64, 8, 4)),
}


def candidates(rows: int, outputs: int, inputs: int) -> list[Tiling]:
    """Tilings for a product of so many rows, all of which divide the inputs evenly."""
    found: list[Tiling] = []
    if rows == 1:
        found = [Tiling(0, n, k, split, warps) for n, k, split, warps in _ONE_ROW if inputs % (k * split) == 0]
    blocks = [8, 16] if rows <= 8 else [rows]
    for block_m in blocks if rows > 1 else [16]:
        for block_n, block_k, warps, stages in _SOME_ROWS[block_m]:
            splits = _splits(block_m, outputs, inputs, block_n, block_k, stages)
            found += [Tiling(block_m, block_n, block_k, split_k, warps, stages) for split_k in splits]
    return [tiling for tiling in found if tiling.fits(outputs)]


def _splits(block_m: int, outputs: int, inputs: int, block_n: int, block_k: int, stages: int) -> list[int]:
    """The most parts of K whose programs all run at once, and the number before it."""
    tiles, steps = -(-outputs // block_n), inputs // block_k
    resident = _MULTIPROCESSORS * max(1, min(4, _SHARED_BYTES // (stages * 2 * block_k * (block_m + block_n))))
    possible = [split for split in range(2, 9) if steps % split == 0 and steps // split >= 4]
    return [1, *(split for split in possible if tiles * split <= resident)][-2:]
