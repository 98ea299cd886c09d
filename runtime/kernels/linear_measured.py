"""The quickest tilings of `linear` on an H200, as `benchmarks/tune_linear.py --table` writes them."""

from __future__ import annotations

Values = tuple[int, int, int, int, int, int, bool, bool]
"""The fields of a `Tiling`."""

MEASURED: dict[tuple[int, int], tuple[tuple[int, Values | None], ...]] = {
    # (outputs, inputs): for up to so many rows, a tiling, or None where cuBLAS is quicker
    (6144, 4096): (
        (1, (0, 1, 4096, 1, 4, 1, True, False)),
        (8, (16, 64, 256, 1, 4, 4, False, False)),
        (16, (16, 64, 256, 1, 4, 4, False, True)),
        (32, (32, 64, 256, 1, 4, 4, False, True)),
        (64, None),
        (128, None),
    ),
    (4096, 4096): (
        (1, (0, 4, 2048, 1, 4, 1, True, False)),
        (8, (16, 64, 128, 2, 4, 5, True, True)),
        (16, (16, 64, 256, 1, 4, 4, True, True)),
        (32, (32, 64, 128, 2, 4, 5, True, False)),
        (64, (64, 64, 128, 2, 4, 4, True, False)),
        (128, None),
    ),
    (28672, 4096): (
        (1, (0, 2, 2048, 1, 4, 1, True, False)),
        (8, (16, 64, 128, 1, 4, 5, False, False)),
        (16, (16, 64, 128, 1, 4, 5, False, False)),
        (32, (32, 128, 128, 1, 4, 4, False, False)),
        (64, (64, 128, 128, 1, 8, 4, False, False)),
        (128, (128, 128, 64, 1, 8, 5, True, True)),
    ),
    (4096, 14336): (
        (1, (0, 4, 2048, 1, 8, 1, True, False)),
        (8, (16, 64, 256, 2, 4, 4, True, True)),
        (16, (16, 64, 256, 2, 4, 4, True, True)),
        (32, (32, 64, 128, 2, 4, 5, True, False)),
        (64, (64, 64, 128, 2, 4, 4, True, True)),
        (128, (128, 64, 128, 2, 4, 4, True, True)),
    ),
    (128256, 4096): (
        (1, (0, 2, 2048, 1, 4, 1, False, False)),
        (8, (16, 128, 128, 1, 4, 4, False, False)),
        (16, (16, 128, 128, 1, 4, 4, False, False)),
        (32, (32, 128, 128, 1, 4, 4, True, False)),
        (64, (64, 128, 128, 1, 8, 4, True, False)),
        (128, None),
    ),
    (49152, 4096): (
        (1, (0, 2, 2048, 1, 4, 1, False, False)),
        (8, (16, 128, 128, 1, 4, 4, True, True)),
        (16, (16, 64, 128, 1, 4, 5, True, True)),
        (32, (32, 128, 128, 1, 4, 4, True, True)),
        (64, (64, 128, 128, 1, 8, 4, True, True)),
        (128, None),
    ),
    (3072, 2048): (
        (1, (0, 2, 2048, 1, 4, 1, True, False)),
        (8, (16, 64, 256, 1, 4, 4, True, True)),
        (16, (16, 64, 256, 1, 4, 4, True, True)),
        (32, (32, 64, 128, 1, 4, 5, True, False)),
        (64, None),
        (128, None),
    ),
    (2048, 2048): (
        (1, (0, 2, 2048, 1, 4, 1, True, False)),
        (8, (8, 64, 128, 4, 4, 5, True, True)),
        (16, (16, 64, 256, 2, 4, 4, True, True)),
        (32, (32, 64, 128, 4, 4, 5, True, False)),
        (64, (64, 64, 128, 2, 4, 4, True, True)),
        (128, None),
    ),
    (16384, 2048): (
        (1, (0, 2, 2048, 1, 4, 1, True, False)),
        (8, (16, 128, 128, 1, 4, 4, True, True)),
        (16, (16, 128, 128, 1, 4, 4, True, True)),
        (32, (32, 128, 128, 1, 4, 4, True, True)),
        (64, (64, 128, 128, 1, 8, 4, True, True)),
        (128, (128, 128, 64, 1, 8, 5, True, True)),
    ),
    (2048, 8192): (
        (1, (0, 4, 2048, 1, 4, 1, True, False)),
        (8, (16, 64, 128, 4, 4, 5, False, False)),
        (16, (16, 64, 256, 4, 4, 4, True, False)),
        (32, (32, 64, 128, 4, 4, 5, True, False)),
        (64, (64, 64, 128, 4, 4, 4, True, True)),
        (128, (128, 64, 128, 4, 4, 4, True, True)),
    ),
    (128256, 2048): (
        (1, (0, 2, 2048, 1, 4, 1, False, False)),
        (8, (16, 64, 128, 1, 4, 5, False, False)),
        (16, (16, 64, 128, 1, 4, 5, False, False)),
        (32, (32, 128, 64, 1, 4, 5, False, False)),
        (64, (64, 128, 64, 1, 4, 4, False, True)),
        (128, None),
    ),
}
